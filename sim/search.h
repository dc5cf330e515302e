// Runs seeds, each in a process that may end, and shrinks what is found to the inputs that it takes.
#ifndef COFFERDAM_SIM_SEARCH_H_
#define COFFERDAM_SIM_SEARCH_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/mutants.h"
#include "sim/trail.h"

namespace cofferdam::sim {

struct Found {
  uint64_t seed = 0;
  std::string kind, what;
  std::vector<size_t> kept;  // the inputs that it takes
};

struct SearchOptions {
  uint64_t first_seed = 1;
  uint64_t seeds = 0;                   // 0: no limit
  std::chrono::nanoseconds longest{0};  // 0: no limit
  const Mutant* mutant = nullptr;
  bool leaks_only = false;  // wrong answers and what leads to them; not that somebody was disturbed or a process ended itself
  bool progress = false;
};

struct SearchResult {
  uint64_t seeds = 0, events = 0, requests = 0, answered = 0, failed = 0, tokens = 0, handoff_failures = 0;
  double seconds = 0;
  std::optional<Found> found;
};

// Until something is found, or the seeds or the time are over.
SearchResult Search(const SearchOptions& options);
// One seed with some of its inputs (none: all).
std::optional<Found> TryOne(uint64_t seed, const std::vector<size_t>& keep, const Mutant* mutant);
// A trail, as Play says; also when it ends the process.
struct TrailResult {
  std::optional<Found> found;
  size_t followed = 0;
  std::string stopped;
  bool on_the_way = false;
};
TrailResult TryTrail(const Trail& trail, const Mutant* mutant);
// With the fewest inputs that were tried and still fail in the same way.
Found Shrink(Found found, const Mutant* mutant);

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_SEARCH_H_
