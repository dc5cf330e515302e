#include "cli/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace cofferdam::cli {
namespace {

LevelTest OneOf(std::set<std::string_view> levels) {
  return [levels = std::move(levels)](std::string_view level) { return levels.contains(level); };
}
const LevelTest kAll = [](std::string_view) { return true; };

std::string Chosen(std::string_view wanted, const LevelTest& runs, const LevelTest& built) {
  const auto choice = ChooseLevel(wanted, runs, built);
  const auto* none = std::get_if<NoLevel>(&choice);
  return none != nullptr ? "none: " + none->reason : std::string(std::get<std::string_view>(choice));
}

TEST(Isa, TheBestThatIsBuiltAndRunsIsChosen) {
  EXPECT_EQ(Chosen("", kAll, kAll), "x86-64-v4-vnni");
  EXPECT_EQ(Chosen("", OneOf({"x86-64-v2", "x86-64-v3"}), kAll), "x86-64-v3");
  EXPECT_EQ(Chosen("", kAll, OneOf({"x86-64-v2", "x86-64-v4"})), "x86-64-v4");
}

TEST(Isa, ALevelThatTheProcessorLacksIsNeverChosen) {
  for (const std::string_view wanted : {"", "x86-64-v4", "x86-64-v3"}) {
    EXPECT_TRUE(Chosen(wanted, OneOf({}), kAll).starts_with("none: ")) << wanted;
  }
  EXPECT_NE(Chosen("x86-64-v4", OneOf({"x86-64-v3"}), kAll).find("does not run"), std::string::npos);
}

TEST(Isa, ALowerOneIsStartedWhereTheUserAsksForIt) {
  EXPECT_EQ(Chosen("x86-64-v2", kAll, kAll), "x86-64-v2");
  EXPECT_NE(Chosen("x86-64-v9", kAll, kAll).find("x86-64-v4-vnni, x86-64-v4, x86-64-v3, x86-64-v2"), std::string::npos);
  EXPECT_NE(Chosen("x86-64-v3", kAll, OneOf({"x86-64-v2"})).find("beside"), std::string::npos);
  EXPECT_NE(Chosen("", kAll, OneOf({})).find("beside"), std::string::npos);
}

// Every level holds what the next lower one has, so what this processor runs is an unbroken run from the lowest.
TEST(Isa, WhatThisProcessorRunsHasNoGap) {
  EXPECT_FALSE(CpuRuns("x86-64-v9"));
  for (size_t i = 0; i + 1 < kIsaLevels.size(); ++i) {
    EXPECT_TRUE(!CpuRuns(kIsaLevels[i]) || CpuRuns(kIsaLevels[i + 1])) << kIsaLevels[i];
  }
}

TEST(Isa, CMakeBuildsTheSameLevels) {
  const std::vector<std::string_view> here(kIsaLevels.begin(), kIsaLevels.end());
  std::string list;
  for (const std::string_view level : here) list.append(list.empty() ? "" : ",").append(level);
  EXPECT_EQ(list, COFFERDAM_ISA_LEVELS);
}

}  // namespace
}  // namespace cofferdam::cli
