// The one rule of admission, and the only maker of the right to reserve pages.
#ifndef COFFERDAM_KV_ADMISSION_H_
#define COFFERDAM_KV_ADMISSION_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "kv/layout.h"
#include "kv/pool.h"

namespace cofferdam::kv {

// A refusal: why, in words for the client. It cannot reserve anything (I1).
struct Rejected {
  absl::Status status;
};
// The request fits, but not now: it holds nothing and asks again later.
struct MustWait {};

using AdmissionResult = std::variant<Admitted, MustWait, Rejected>;

struct AdmissionNeed {
  uint64_t prompt_tokens = 0;
  uint64_t output_tokens = 0;
  uint64_t cached_pages = 0;  // at the beginning of the prompt, pinned already
  // Of the output, what is reserved at once; the rest is asked for page by page.
  uint64_t first_output_tokens = std::numeric_limits<uint64_t>::max();
  uint64_t headroom_pages = 0;  // stay free, for those that grow
};

// Judges requests against one worker's measured capacity. Stateless beside its limits; one thread.
class Admission {
 public:
  // `role` names the worker in refusals. `context_tokens` is the longest sequence served.
  Admission(std::string role, const Layout& layout, uint64_t context_tokens)
      : role_(std::move(role)), layout_(layout), context_tokens_(context_tokens) {}

  // Rejected with context_length_exceeded (both numbers in it) when prompt + output exceed the context or can never
  // fit the usable pages; MustWait when fewer pages are free than needed; otherwise Admitted for the pages of the prompt and of the
  // first part of the output, less the cached ones.
  [[nodiscard]] AdmissionResult Admit(const AdmissionNeed& need, const PoolCounts& pool) const;
  // The right to one page more, for who was admitted and owns a page: `last` is the proof. None when no page is free.
  std::optional<Admitted> AdmitGrowth(const PageHandle& last, const PoolCounts& pool) const;
  // How many pages Admit asks for, and how many must be free for it.
  uint64_t PagesFor(const AdmissionNeed& need) const;
  uint64_t FreePagesFor(const AdmissionNeed& need) const { return PagesFor(need) + need.headroom_pages; }
  // The first half of the rule alone: may this ever be served here?
  absl::Status CheckContext(const AdmissionNeed& need, const PoolCounts& pool) const;

  uint64_t context_tokens(const PoolCounts& pool) const;

 private:
  std::string role_;
  Layout layout_;
  uint64_t context_tokens_;
};

}  // namespace cofferdam::kv

#endif  // COFFERDAM_KV_ADMISSION_H_
