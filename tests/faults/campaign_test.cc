// Every run prints its table; the seed stands in COFFERDAM_FAULT_SEED, and the faults of one run in COFFERDAM_FAULTS_PER_RUN.
#include "faults/campaign.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "small_model.h"

namespace cofferdam::faults {
namespace {

using Mode = engine::VerifyReads::Mode;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class FaultCampaign : public testing::TestWithParam<const char*> {};

TEST_P(FaultCampaign, I6_I12_NoTokenComesFromAWrongPageAndNobodyElseIsDisturbed) {
  const engine::VerifyReads verify = *engine::ParseVerifyReads(GetParam());
  const Options options{.faults = FromEnvironment("COFFERDAM_FAULTS_PER_RUN", 3000),
                        .seed = FromEnvironment("COFFERDAM_FAULT_SEED", 20261202),
                        .verify = verify};
  const Result result = RunCampaign(oracle::SmallModel(), options);
  std::printf("seed %llu, %s", static_cast<unsigned long long>(options.seed), Table(result, verify).c_str());
  EXPECT_TRUE(result.Holds(verify.mode));
  uint64_t harmful = 0;
  for (size_t i = 0; i < kFaultKinds; ++i) {
    EXPECT_GE(result.by_kind[i].injected, options.faults / 100) << ToString(static_cast<FaultKind>(i));
    harmful += result.by_kind[i].wrong;
  }
  // What no mode must catch does harm, so that the test would see harm where there is some.
  EXPECT_GT(harmful, 0u);
}

INSTANTIATE_TEST_SUITE_P(Modes, FaultCampaign, testing::Values("tags", "sampled:4", "full"));

}  // namespace
}  // namespace cofferdam::faults
