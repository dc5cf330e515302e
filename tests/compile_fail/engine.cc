// I1, I4, I6: a page table belongs to a sequence that was admitted, inside the
// engine, and nobody else gets at it.
#include "engine/engine.h"

#include <utility>

namespace cofferdam::engine {

void StartAndRun(Engine& engine, SequenceSpec spec) {
  auto result = engine.Start(std::move(spec));
  if (auto* started = std::get_if<Engine::Started>(&result)) engine.Run(started->sequence);
}

#ifdef MUST_FAIL_result_is_no_sequence  // cannot convert|no known conversion|no viable conversion|could not convert
void ResultIsNoSequence(Engine& engine, SequenceSpec spec) { engine.Run(engine.Start(std::move(spec))); }
#endif
#ifdef MUST_FAIL_refused_runs  // 'struct cofferdam::kv::Rejected' has no member named 'sequence'|no member named 'sequence'
void RefusedRuns(Engine& engine, SequenceSpec spec) {
  auto result = engine.Start(std::move(spec));
  if (auto* rejected = std::get_if<kv::Rejected>(&result)) engine.Run(rejected->sequence);
}
#endif
#ifdef MUST_FAIL_request_number_runs  // cannot convert|no known conversion|no viable conversion|could not convert
void RequestNumberRuns(Engine& engine) { engine.Run(uint64_t{7}); }
#endif
#ifdef MUST_FAIL_page_id_runs  // cannot convert|no known conversion|no viable conversion|could not convert
void PageIdRuns(Engine& engine) { engine.Run(PageId(7)); }
#endif
#ifdef MUST_FAIL_page_table_is_reached  // is private within this context|private member
void PageTableIsReached(Engine& engine) { engine.Get(SequenceId(7)); }
#endif
#ifdef MUST_FAIL_sequence_is_named  // is private within this context|private member
void SequenceIsNamed(const Engine::Sequence& sequence);
#endif
#ifdef MUST_FAIL_reserve_behind_the_engine  // discards qualifiers|drops 'const' qualifier|is 'const'
auto ReserveBehindTheEngine(const Engine& engine, kv::Admitted admitted) { return engine.pool().Reserve(std::move(admitted)); }
#endif
#ifdef MUST_FAIL_seal_behind_the_engine  // discards qualifiers|drops 'const' qualifier|is 'const'
void SealBehindTheEngine(const Engine& engine, const kv::PageHandle& handle) { engine.pool().MarkFilling(handle); }
#endif
#ifdef MUST_FAIL_adoption_ignored  // ignoring return(ed)? value
void AdoptionIgnored(Engine& engine, const kv::Verified& page) { engine.Adopt(SequenceId(7), 0, page); }
#endif
#ifdef MUST_FAIL_adopted_unverified  // cannot convert|no known conversion|no viable conversion|could not convert
absl::Status AdoptedUnverified(Engine& engine, const kv::Seal& seal) { return engine.Adopt(SequenceId(7), 0, seal); }
#endif
#ifdef MUST_FAIL_arrival_adopted_unread  // cannot convert|no known conversion|no viable conversion|could not convert
absl::Status ArrivalAdoptedUnread(Engine& engine, const kv::Arrival& arrival) { return engine.Adopt(SequenceId(7), 0, arrival); }
#endif
#ifdef MUST_FAIL_start_ignored  // ignoring return value
void StartIgnored(Engine& engine, SequenceSpec spec) { engine.Start(std::move(spec)); }
#endif

}  // namespace cofferdam::engine
