// Plays an order of events that the model in spec/ came upon on the production code: what spin writes for a mutant, as the lines
// that the model prints with it ("SIM admit 0", …). Each line stands for one action of the model, and lets happen here what it
// models. Runs are numbered as there: request times attempts, plus the attempt.
#ifndef COFFERDAM_SIM_TRAIL_H_
#define COFFERDAM_SIM_TRAIL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/world.h"

namespace cofferdam::sim {

struct TrailLine {
  std::string action;
  std::vector<uint32_t> numbers;
};

// What the model chose at its beginning, and what happened then.
struct Trail {
  uint32_t lives = 1, decode_pages = 2, prefill_pages = 2, window_pages = 1;
  bool same_domain = false;
  std::vector<uint32_t> pages;  // of each request's prompt
  uint32_t cached = 0;          // requests that were answered before, one of each domain, with two pages
  std::vector<TrailLine> lines;
};

// Lines that do not begin with SIM are ignored. InvalidArgument: a line that no model prints.
absl::StatusOr<Trail> ParseTrail(std::string_view text);

struct Played {
  Outcome outcome;
  std::string stopped;      // why the line behind those that were followed could not happen
  bool on_the_way = false;  // what was found was found on the trail, and not later, when everything was left to itself
};

// Lets all lines happen, and then what they lead to, at its own time. One thread; the switches of base/faults.h stay as they are.
// `followed` counts lines, until one can not happen or something is found; it is counted as it goes, for a process that ends on the
// way. `say` as for a World.
Played Play(const Trail& trail, uint64_t* followed, const std::function<void(const std::string&)>& say = nullptr);

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_TRAIL_H_
