#include "kv/admission.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace cofferdam::kv {

uint64_t Admission::context_tokens(const PoolCounts& pool) const {
  // I11: quarantined pages are lost capacity, so the context shrinks with them.
  return std::min(context_tokens_, pool.usable() * layout_.page_tokens());
}

absl::Status Admission::CheckContext(const AdmissionNeed& need, const PoolCounts& pool) const {
  const uint64_t limit = context_tokens(pool);
  // Compared without adding first: both numbers may come from a client.
  if (need.prompt_tokens > limit || need.output_tokens > limit - need.prompt_tokens) {
    return ContextLengthExceeded(role_, need.prompt_tokens, need.output_tokens, limit);
  }
  return absl::OkStatus();
}

uint64_t Admission::PagesFor(const AdmissionNeed& need) const {
  return layout_.PagesFor(need.prompt_tokens + std::min(need.output_tokens, need.first_output_tokens)) - need.cached_pages;
}

std::optional<Admitted> Admission::AdmitGrowth(const PageHandle& last, const PoolCounts& pool) const {
  CD_CHECK(last.held(), "I1: only who was admitted may grow");
  if (pool.free() == 0) return std::nullopt;
  return Admitted(1);
}

AdmissionResult Admission::Admit(const AdmissionNeed& need, const PoolCounts& pool) const {
  if (absl::Status status = CheckContext(need, pool); !status.ok()) return Rejected{std::move(status)};
  if (FreePagesFor(need) > pool.free()) return MustWait{};
  return Admitted(PagesFor(need));
}

}  // namespace cofferdam::kv
