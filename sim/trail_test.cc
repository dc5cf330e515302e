#include "sim/trail.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "sim/search.h"

namespace cofferdam::sim {
namespace {

const std::string kBegin = "SIM sizes 1 2 2 1\nSIM requests 0 1 1 0\n";
// One request, from beginning to end; its page is read once its bytes have been announced.
const std::string kAnswered =
    "SIM start 0\nSIM admit 0\nSIM open 0\nSIM reserve 0\nSIM begin-prefill 0\nSIM prefill 0 0\nSIM announced 0 0\n"
    "SIM first-half 0 0\nSIM second-half 0 0\nSIM read 0 0\nSIM closed 0\nSIM free-prefill\nSIM begin-decode 0\nSIM decode 0\n";
// Its stream breaks between the two halves of the read, and prefill's page is zeroed.
const std::string kTorn =
    "SIM start 0\nSIM admit 0\nSIM open 0\nSIM reserve 0\nSIM begin-prefill 0\nSIM prefill 0 0\nSIM announced 0 0\n"
    "SIM first-half 0 0\nSIM broken 0\nSIM free-prefill\nSIM second-half 0 0\nSIM read 0 0\nSIM begin-decode 0\nSIM decode 0\n";

TrailResult Try(const std::string& lines, const char* mutant) {
  const auto trail = ParseTrail(kBegin + lines);
  EXPECT_TRUE(trail.ok()) << trail.status();
  const Mutant* const named = mutant == nullptr ? nullptr : MutantNamed(mutant);
  EXPECT_EQ(mutant == nullptr, named == nullptr);
  return TryTrail(*trail, named);
}

TEST(Trail, OnTheCodeAsItIsARequestIsAnswered) {
  const TrailResult result = Try(kAnswered, nullptr);
  EXPECT_EQ(result.followed, 14u) << result.stopped;
  EXPECT_EQ(result.stopped, "");
  EXPECT_FALSE(result.found.has_value()) << result.found->what;
}

TEST(Trail, AReadThatTearsIsAWrongAnswerOnlyWithoutTheChecksum) {
  EXPECT_FALSE(Try(kTorn, nullptr).found.has_value());
  const TrailResult wrong = Try(kTorn, "no-checksum");
  ASSERT_TRUE(wrong.found.has_value()) << wrong.stopped;
  EXPECT_EQ(wrong.found->kind, "wrong answer");
  EXPECT_TRUE(wrong.on_the_way);
}

TEST(Trail, WhatCannotHappenStopsItAndIsNamed) {
  const TrailResult result = Try("SIM start 0\nSIM admit 0\nSIM first-half 0 0\n", nullptr);
  EXPECT_EQ(result.followed, 2u);
  EXPECT_NE(result.stopped.find("first-half 0 0"), std::string::npos) << result.stopped;
  EXPECT_FALSE(result.found.has_value()) << "the rest is left to itself, and ends well";
  EXPECT_NE(Try("SIM start 0\nSIM admit 9\n", nullptr).stopped.find("no such run"), std::string::npos);
}

TEST(Trail, LinesOfOthersAreIgnoredAndWrongOnesRefused) {
  const auto trail = ParseTrail(absl::StrCat("spin: trail ends\n", kBegin, "\nSIM start 1\nSIMON says\n"));
  ASSERT_TRUE(trail.ok()) << trail.status();
  ASSERT_EQ(trail->lines.size(), 1u);
  EXPECT_EQ(trail->lines[0].action, "start");
  for (const char* line : {"SIM dance 1", "SIM start", "SIM start 1 2", "SIM start x", "SIM start -1", "SIM start 65",
                           "SIM sizes 1 2 3 4 5 6", "SIM sizes 0 2 2 1", "SIM requests 0 3 1 0"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTrail(absl::StrCat(kBegin, line, "\n")).status())) << line;
  }
  EXPECT_FALSE(ParseTrail("").ok());
  EXPECT_FALSE(ParseTrail("SIM start 0\n").ok());
}

}  // namespace
}  // namespace cofferdam::sim
