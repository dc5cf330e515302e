// Growth page by page, and who yields when no page is left.
//
// Why everybody ends: a page is taken only from sequences behind the one that asks, so the first in order is never preempted; it
// waits only for what comes back by itself (zeroing, reads under way, handoffs that end), and can fit alone, since it was admitted
// for no more than the pool holds. When it has ended another is the first.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/sequence.h"

namespace cofferdam::engine {
namespace {
constexpr uint64_t kRowsAhead = 4;  // a page is asked for so long before it is needed: zeroing takes a moment
}  // namespace

uint64_t Engine::PagesWanted(const Sequence& sequence) const {
  // The last token is sampled and never fed.
  return pool_.layout().PagesFor(sequence.spec.tokens.size() + sequence.spec.max_output - 1);
}

bool Engine::MayGrow(const Sequence& sequence) const {
  return sequence.generates() && sequence.pages.size() < PagesWanted(sequence);
}

bool Engine::Stalled() const {
  return std::ranges::all_of(running_, [](const Sequence* sequence) { return sequence->stalled; });
}

void Engine::Grow(std::vector<Event>& events) {
  uint64_t pages = 0;  // asked for in this step
  // Only sequences behind the one that asks are taken out meanwhile.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    sequence.stalled = false;
    const uint64_t room = sequence.pages.size() * pool_.layout().page_tokens();
    if (!MayGrow(sequence) || sequence.covered() + kRowsAhead < room || TakePage(sequence, events)) continue;
    ++pages;
    const bool needed = sequence.covered() >= room;
    if (const uint64_t coming = ComingPages(); pages > coming) cache_.Evict(pages - coming, NowUnderWay());
    if (!needed) continue;
    MakeRoom(pages, sequence, events);
    sequence.stalled = true;
    ++counters_.stalls;
  }
  Sequence* const only = sequences_.size() == 1 && running_.size() == 1 ? running_.front() : nullptr;
  if (only == nullptr || !only->stalled || ComingPages() > 0 || cache_.evictable_pages() > 0) return;
  // It was admitted for what the pool held then.
  events.push_back(
      FailedEvent{.sequence = only->id,
                  .status = WithFacts(absl::UnavailableError(absl::StrCat("the ", options_.role,
                                                                          " has lost pages to quarantine, and none is left "
                                                                          "for the rest of this answer; try again elsewhere")),
                                      {.code = std::string(error_code::kNoWorker), .retry_after_s = 1}),
                  .wrong = {}});
  Erase(*only, {});
}

bool Engine::TakePage(Sequence& sequence, std::vector<Event>& events) {
  auto admitted = admission_.AdmitGrowth(sequence.pages.back(), pool_.counts());
  if (!admitted.has_value()) return false;
  std::optional<std::vector<kv::PageHandle>> pages = pool_.Reserve(*std::move(admitted));
  CD_CHECK(pages.has_value() && pages->size() == 1, "admission and reservation are one action of one thread");
  kv::PageHandle& page = pages->front();
  events.push_back(GrownEvent{.sequence = sequence.id, .page = page.page(), .generation = page.generation()});
  sequence.payloads.push_back(pool_.Payload(page.page()).data());
  sequence.pages.emplace_back(std::move(page));
  sequence.adopted.emplace_back();
  sequence.origins.push_back(0);
  ++counters_.pages_grown;
  return true;
}

void Engine::MakeRoom(uint64_t pages, const Sequence& sequence, std::vector<Event>& events) {
  while (ComingPages() < pages) {
    if (cache_.Evict(pages - ComingPages(), NowUnderWay()) > 0) continue;
    const auto last = std::find_if(running_.rbegin(), running_.rend(), [](const Sequence* s) { return s->generates(); });
    // The last one gives nothing up for itself: those before it need its pages or end.
    if (*last == &sequence) return;
    Preempt(**last, events);
  }
}

void Engine::Preempt(Sequence& sequence, std::vector<Event>& events) {
  CD_CHECK(&sequence != running_.front(), "I11: the first in order is never preempted");
  ++counters_.preemptions;
  counters_.preempted_tokens += sequence.covered();
  const auto prompt = static_cast<ptrdiff_t>(sequence.spec.tokens.size());
  events.push_back(PreemptedEvent{
      .sequence = sequence.id, .generated = {sequence.tokens.begin() + prompt, sequence.tokens.end()}, .checks = sequence.checks});
  Erase(sequence, {});
}

}  // namespace cofferdam::engine
