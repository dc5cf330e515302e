#include "base/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace cofferdam {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

uint64_t MachineBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name, unit;
  for (uint64_t kib = 0; meminfo >> name >> kib >> unit;) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

// "max" and absent files are no limit.
uint64_t NumberIn(const std::string& path) {
  uint64_t number = 0;
  return std::ifstream(path) >> number ? number : kNoLimit;
}

// The least that any group from ours up to the root leaves.
uint64_t ControlGroupBytes() {
  std::ifstream groups("/proc/self/cgroup");
  std::string group;
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::")) group = line.substr(3);
  }
  uint64_t least = kNoLimit;
  while (true) {
    const std::string folder = "/sys/fs/cgroup" + group;
    const uint64_t limit = NumberIn(folder + "/memory.max"), used = NumberIn(folder + "/memory.current");
    if (limit != kNoLimit && used != kNoLimit) least = std::min(least, limit - std::min(limit, used));
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos || group.empty()) return least;
    group.resize(slash);
  }
}

}  // namespace

uint64_t AvailableMemoryBytes() { return std::min(MachineBytes(), ControlGroupBytes()); }

}  // namespace cofferdam
