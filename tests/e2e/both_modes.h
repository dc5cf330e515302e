// For tests that must pass whether prompts are computed by a worker of their own or by the one that answers.
//
//   class Serving : public BothModes { ... Cluster(arguments, GetParam()) ... };
//   INSTANTIATE_TEST_SUITE_P(Modes, Serving, kBothModes, NameOfMode);
#ifndef COFFERDAM_TESTS_E2E_BOTH_MODES_H_
#define COFFERDAM_TESTS_E2E_BOTH_MODES_H_

#include <gtest/gtest.h>

#include <string>

#include "e2e/cluster.h"

namespace cofferdam::e2e {

using BothModes = testing::TestWithParam<Mode>;

inline const auto kBothModes = testing::Values(Mode::kDisaggregated, Mode::kColocated);

inline std::string NameOf(Mode mode) { return mode == Mode::kColocated ? "Colocated" : "Disaggregated"; }
inline std::string NameOfMode(const testing::TestParamInfo<Mode>& info) { return NameOf(info.param); }

}  // namespace cofferdam::e2e

#endif  // COFFERDAM_TESTS_E2E_BOTH_MODES_H_
