#include "cli/isa.h"

#include <algorithm>

namespace cofferdam::cli {

bool CpuRuns(std::string_view level) {
  __builtin_cpu_init();
  if (level == "x86-64-v2") return __builtin_cpu_supports("x86-64-v2") != 0;
  if (level == "x86-64-v3") return __builtin_cpu_supports("x86-64-v3") != 0;
  if (level == "x86-64-v4") return __builtin_cpu_supports("x86-64-v4") != 0;
  if (level == "x86-64-v4-vnni") return __builtin_cpu_supports("x86-64-v4") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
  return false;
}

std::variant<std::string_view, NoLevel> ChooseLevel(std::string_view wanted, const LevelTest& runs, const LevelTest& built) {
  if (!wanted.empty()) {
    const auto* const level = std::ranges::find(kIsaLevels, wanted);
    const std::string name(wanted.substr(0, 64));
    if (level == kIsaLevels.end()) {
      std::string known;
      for (const std::string_view each : kIsaLevels) known.append(known.empty() ? "" : ", ").append(each);
      return NoLevel{"COFFERDAM_ISA names '" + name + "', which is not one of " + known};
    }
    if (!runs(*level)) return NoLevel{"COFFERDAM_ISA names " + name + ", which this processor does not run"};
    if (!built(*level)) return NoLevel{"COFFERDAM_ISA names " + name + ", whose binary does not lie beside this one"};
    return *level;
  }
  bool any_built = false;
  for (const std::string_view level : kIsaLevels) {
    if (!built(level)) continue;
    any_built = true;
    if (runs(level)) return level;
  }
  if (!any_built) {
    return NoLevel{"no cofferdam-x86-64-… lies beside this file: install the binaries of a portable build together"};
  }
  return NoLevel{"this processor runs none of the levels that were built; x86-64-v2 (SSE4.2) is the lowest there is"};
}

}  // namespace cofferdam::cli
