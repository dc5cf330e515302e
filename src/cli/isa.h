// The instruction-set levels that a portable build holds one binary of each for, and the choice between them.
//
// Levels are those of the x86-64 psABI (https://gitlab.com/x86-psABIs/x86-64-ABI, table "Micro-Architecture Levels"),
// and one of ours above them. This file and its users run on every x86-64 processor: nothing here may need more.
#ifndef COFFERDAM_CLI_ISA_H_
#define COFFERDAM_CLI_ISA_H_

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <variant>

namespace cofferdam::cli {

// Best first. cmake/Portable.cmake builds the same list, and scripts/build-llama knows the flags of each; a test compares them.
inline constexpr std::array<std::string_view, 4> kIsaLevels = {
    "x86-64-v4-vnni",  // AVX-512 with F, BW, CD, DQ, VL and VNNI
    "x86-64-v4",       // AVX-512 with F, BW, CD, DQ, VL
    "x86-64-v3",       // AVX2, FMA, F16C, BMI2
    "x86-64-v2",       // SSE4.2
};

// Whether this processor and its operating system run `level`; false for unknown ones.
bool CpuRuns(std::string_view level);

using LevelTest = std::function<bool(std::string_view level)>;

// The level to start, or why there is none, in words for the user. `wanted` (empty: the best) is what the user asked for.
// Never a level that `runs` denies: its first instruction could be illegal.
struct NoLevel {
  std::string reason;
};
std::variant<std::string_view, NoLevel> ChooseLevel(std::string_view wanted, const LevelTest& runs, const LevelTest& built);

}  // namespace cofferdam::cli

#endif  // COFFERDAM_CLI_ISA_H_
