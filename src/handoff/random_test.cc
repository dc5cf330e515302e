// Both machines against each other under a random scheduler: tens of thousands of schedules, each from its own seed.
// COFFERDAM_HANDOFF_SEED=n runs that schedule alone, COFFERDAM_HANDOFF_SCHEDULES=n another number of them. The fuzzer of
// fuzz/fuzz_handoff.cc runs the same world.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/faults.h"
#include "handoff/random_world.h"

namespace cofferdam::handoff {
namespace {

using testing::Marks;

void RunSchedule(uint64_t seed, Marks& marks) {
  testing::RandomChoices choices(seed);
  testing::World(choices, marks, [](const char* invariant) { ADD_FAILURE() << invariant; }).Run();
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(HandoffRandomTest, InvariantsHoldInEverySchedule) {
  Marks marks;
  if (const uint64_t seed = FromEnvironment("COFFERDAM_HANDOFF_SEED", 0); seed != 0) return RunSchedule(seed, marks);
  const uint64_t schedules = FromEnvironment("COFFERDAM_HANDOFF_SCHEDULES", 40'000);
  for (uint64_t seed = 1; seed <= schedules; ++seed) {
    RunSchedule(seed, marks);
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ": run again with COFFERDAM_HANDOFF_SEED=" << seed;
  }
  for (const char* name : {"refused",
                           "waited for pages",
                           "reserved after the stream was closed",
                           "computation failed",
                           "a step ended after the stream was closed",
                           "unpinned under a reader",
                           "announced twice",
                           "wrong announcement",
                           "decode learnt of the stream's end before coverage",
                           "a read ended after the end",
                           "a read failed",
                           "bits flipped",
                           "waited for the window",
                           "prefill gave decode up",
                           "cancelled with reads out",
                           "cancelled",
                           "cancelled after completion",
                           "closed a silent peer",
                           "an adoption failed",
                           "the last adoption failed",
                           "completed",
                           "tried again",
                           "a message of an earlier attempt",
                           "stale messages",
                           "a wrong covered count"}) {
    EXPECT_GT(marks[name], 0u) << "never reached: " << name;
  }
  for (const auto& [name, count] : marks) RecordProperty(std::string(name), std::to_string(count));
}

#ifdef COFFERDAM_FAULTS
// The world finds what it is there to find: with any of these bugs some schedule breaks an invariant.
class HandoffFaultTest : public ::testing::TestWithParam<Fault> {};

[[noreturn]] void EndAt(const char* invariant) {
  std::fprintf(stderr, "broken: %s\n", invariant);
  std::abort();
}

TEST_P(HandoffFaultTest, SomeScheduleFindsIt) {
  const auto run = [] {
    Marks marks;
    SetFault(GetParam(), true);
    for (uint64_t seed = 1; seed <= 20'000; ++seed) {
      testing::RandomChoices choices(seed);
      testing::World(choices, marks, EndAt).Run();
    }
  };
  EXPECT_DEATH(run(), "broken");
}

INSTANTIATE_TEST_SUITE_P(Faults, HandoffFaultTest,
                         ::testing::Values(Fault::kFreeAtTimeout, Fault::kNoStepFence, Fault::kCoverageByPeer, Fault::kStaleAttempt,
                                           Fault::kPinDroppedEarly, Fault::kNoZeroing, Fault::kIdentityNotChecked,
                                           Fault::kChecksumNotChecked, Fault::kTransfersNotCounted));
#endif

}  // namespace
}  // namespace cofferdam::handoff
