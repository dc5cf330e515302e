// Values that both sides of a handoff speak of.
#ifndef COFFERDAM_HANDOFF_TYPES_H_
#define COFFERDAM_HANDOFF_TYPES_H_

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "kv/seal.h"

namespace cofferdam::handoff {

// Time comes in from the driver; the machines never ask a clock.
using Time = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

// Names one try at one request (I8).
struct AttemptId {
  uint64_t boot_id = 0;
  uint64_t counter = 0;
  friend bool operator==(const AttemptId&, const AttemptId&) = default;
};

// Where a page's payload lies at its source.
struct RemotePage {
  uint64_t region = 0;
  uint64_t offset = 0;
  uint64_t generation = 0;
};

struct AnnouncedPage {
  uint32_t ordinal = 0;
  RemotePage source;
  kv::Seal seal;
};

}  // namespace cofferdam::handoff

#endif  // COFFERDAM_HANDOFF_TYPES_H_
