// The checks of what a step reads (I6), and what happens when one fails (I12).
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error.h"
#include "base/faults.h"
#include "engine/engine.h"
#ifdef COFFERDAM_FAULTS
#include "engine/injector.h"
#endif
#include "engine/sequence.h"

namespace cofferdam::engine {

using kv::CheckKind;

namespace {
constexpr uint32_t kTagsAhead = 16;  // pages whose tags are on their way from memory while one's are compared
}

WrongPage Engine::Describe(const Sequence& sequence, uint32_t ordinal, CheckKind kind) const {
  const PageRef& handle = sequence.pages[ordinal];
  return {.kind = kind,
          .page = handle.page(),
          .ordinal = ordinal,
          .expected = handle.generation(),
          .found = pool_.GenerationOf(handle.page()),
          .in_memory = pool_.GenerationInMemory(handle.page())};
}

void Engine::CheckTags(Sequence& sequence, uint64_t end_tokens, std::vector<WrongPage>& wrong) {
  if (FaultIsOn(Fault::kTagsNotCompared)) return;
  const auto pages = static_cast<uint32_t>(pool_.layout().PagesFor(end_tokens));
  const uint32_t page_tokens = pool_.layout().page_tokens();
  for (uint32_t i = 0; i < std::min(pages, kTagsAhead); ++i) pool_.PrefetchTags(sequence.pages[i].page());
  for (uint32_t i = 0; i < pages; ++i) {
    if (i + kTagsAhead < pages) pool_.PrefetchTags(sequence.pages[i + kTagsAhead].page());
    const PageRef& handle = sequence.pages[i];
    // Attention reads through the payload's address: that, too, must be this page's.
    const bool own = sequence.payloads[i] == pool_.Payload(handle.page()).data();
    // Whatever is covered was filled: by a step of this sequence, or by a peer, with a seal.
    const kv::PageState state = pool_.StateOf(handle.page());
    const uint64_t covered = sequence.covered(), first = uint64_t{i} * page_tokens;
    const bool filled = state == kv::PageState::kSealed ||
                        (state == kv::PageState::kFilling ? covered < first + page_tokens : covered <= first) ||
                        FaultIsOn(Fault::kStatesNotCompared);
    const bool right = own && filled && pool_.TagsMatch(handle.page(), handle.generation());
    // A page that another check found wrong is so for all that share it; this sequence may know already.
    if (right && (!handle.bad() || std::ranges::find(wrong, handle.page(), &WrongPage::page) != wrong.end())) continue;
    ++counters_.checks[CheckKind::kTags].failed;
    wrong.push_back(Describe(sequence, i, CheckKind::kTags));
  }
  counters_.checks[CheckKind::kTags].made += pages;
  sequence.checks[CheckKind::kTags].made += pages;
}

void Engine::CheckRows(Slice& slice, std::vector<WrongPage>& wrong) {
  if (FaultIsOn(Fault::kRowsNotCompared)) return;
  Sequence& sequence = *slice.sequence;
  const uint32_t page_tokens = pool_.layout().page_tokens();
  const uint64_t first = sequence.covered();
  const auto first_page = static_cast<uint32_t>(first / page_tokens);
  const auto last_page = static_cast<uint32_t>((first + slice.rows - 1) / page_tokens);
  bool same = true;
  for (uint32_t i = 0; i < slice.rows; ++i) {
    const model::BatchRow& row = rows_[slice.first_row + i];
    same = same && row.token == sequence.tokens[first + i] && row.position == first + i;
  }
  counters_.checks[CheckKind::kRows].made += last_page - first_page + 1;
  sequence.checks[CheckKind::kRows].made += last_page - first_page + 1;
  if (same) return;
  ++counters_.checks[CheckKind::kRows].failed;
  wrong.push_back(Describe(sequence, first_page, CheckKind::kRows));
}

void Engine::CheckPayload(Sequence& sequence, uint32_t ordinal, CheckKind kind, std::vector<WrongPage>& wrong) {
  ++counters_.checks[kind].made;
  ++sequence.checks[kind].made;
  if (pool_.PayloadMatches(sequence.pages[ordinal])) return;
  ++counters_.checks[kind].failed;
  wrong.push_back(Describe(sequence, ordinal, kind));
}

void Engine::FailOnWrong(Sequence& sequence, std::vector<WrongPage> wrong, std::vector<Event>& events) {
  std::vector<PageId> quarantine;
  // Where the rows were wrong, the computation is to blame and not the memory.
  for (const WrongPage& page : wrong) {
    if (page.kind != CheckKind::kRows) quarantine.push_back(page.page);
  }
  const char* what = wrong[0].kind == CheckKind::kTags   ? "is not the request's own any more"
                     : wrong[0].kind == CheckKind::kRows ? "was computed from other tokens than the request's"
                                                         : "does not hold the bytes any more that it was sealed with";
  absl::Status status =
      WithFacts(absl::DataLossError(absl::StrCat("KV page ", wrong[0].page.value(), " ", what, "; the request was ended")),
                {.code = std::string(error_code::kIntegrity)});
#ifdef COFFERDAM_FAULTS
  if (injector_ != nullptr) injector_->OnFailed(sequence.id, wrong);
#endif
  events.push_back(FailedEvent{.sequence = sequence.id, .status = std::move(status), .wrong = std::move(wrong)});
  Erase(sequence, quarantine);
}

void Engine::CountDue(const std::vector<Slice>& slices) {
  uint64_t pages = 0, sealed = 0;
  const uint32_t page_tokens = pool_.layout().page_tokens();
  for (const Slice& slice : slices) {
    const uint64_t first = slice.sequence->covered();
    counters_.row_checks_due += (first + slice.rows - 1) / page_tokens - first / page_tokens + 1;
    pages += pool_.layout().PagesFor(slice.sequence->covered() + slice.rows);
    sealed += slice.sequence->sealed_pages;
  }
  counters_.tag_checks_due += 2 * pages;
  const VerifyReads& verify = options_.verify_reads;
  if (verify.mode == VerifyReads::Mode::kSampled) counters_.payload_checks_due += std::min<uint64_t>(verify.sampled_pages, sealed);
  if (verify.mode == VerifyReads::Mode::kFull) counters_.payload_checks_due += sealed;
}

void Engine::CheckBeforeStep(std::vector<Slice>& slices, std::vector<Event>& events) {
  const CheckTimer timer(counters_.check_time);
  for (Slice& slice : slices) {
    std::vector<WrongPage> wrong;
    CheckTags(*slice.sequence, slice.sequence->covered() + slice.rows, wrong);
    if (wrong.empty()) continue;
    FailOnWrong(*slice.sequence, std::move(wrong), events);
    slice.sequence = nullptr;
  }
}

void Engine::CheckSampledPages(std::vector<Slice>& slices, std::vector<std::vector<WrongPage>>& wrong) {
  uint64_t sealed = 0;
  for (const Slice& slice : slices) sealed += slice.sequence->sealed_pages;
  const uint64_t count = std::min<uint64_t>(options_.verify_reads.sampled_pages, sealed);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t at = next_sampled_++ % sealed;
    size_t slice = 0;
    while (at >= slices[slice].sequence->sealed_pages) at -= slices[slice++].sequence->sealed_pages;
    CheckPayload(*slices[slice].sequence, static_cast<uint32_t>(at), CheckKind::kPayload, wrong[slice]);
  }
}

void Engine::CheckAfterStep(std::vector<Slice>& slices, std::vector<Event>& events) {
  const CheckTimer timer(counters_.check_time);
  // By slice: what is wrong with its sequence, whatever check found it.
  std::vector<std::vector<WrongPage>> wrong(slices.size());
  if (options_.verify_reads.mode == VerifyReads::Mode::kSampled) CheckSampledPages(slices, wrong);
  for (size_t i = 0; i < slices.size(); ++i) {
    CheckRows(slices[i], wrong[i]);
    if (options_.verify_reads.mode == VerifyReads::Mode::kFull) CheckReadBytes(slices[i], i, wrong[i]);
  }
  // Before anybody's tags are compared: whoever shares such a page has read it, too.
  for (const std::vector<WrongPage>& pages : wrong) {
    for (const WrongPage& page : pages) {
      if (page.kind == CheckKind::kPayload) cache_.Condemn(page.page, NowUnderWay());
    }
  }
  for (size_t i = 0; i < slices.size(); ++i) {
    CheckTags(*slices[i].sequence, slices[i].sequence->covered() + slices[i].rows, wrong[i]);
  }
  for (size_t i = 0; i < slices.size(); ++i) {
    if (wrong[i].empty()) continue;
    FailOnWrong(*slices[i].sequence, std::move(wrong[i]), events);
    slices[i].sequence = nullptr;
  }
}

void Engine::CheckReadBytes(const Slice& slice, size_t table, std::vector<WrongPage>& wrong) {
  Sequence& sequence = *slice.sequence;
  counters_.checks[CheckKind::kPayload].made += sequence.sealed_pages;
  sequence.checks[CheckKind::kPayload].made += sequence.sealed_pages;
  if (!executor_.ReadWrongBytes(static_cast<uint32_t>(table))) return;
  // Attention says only that something was wrong; which pages it is, is found out here.
  const size_t before = wrong.size();
  for (uint32_t page = 0; page < sequence.sealed_pages; ++page) {
    if (!pool_.PayloadMatches(sequence.pages[page])) wrong.push_back(Describe(sequence, page, CheckKind::kPayload));
  }
  // A fault that has passed by now was read all the same. No page can be blamed, so all are.
  for (uint32_t page = 0; wrong.size() == before && page < sequence.sealed_pages; ++page)
    wrong.push_back(Describe(sequence, page, CheckKind::kPayload));
  counters_.checks[CheckKind::kPayload].failed += wrong.size() - before;
}

bool Engine::ScrubCached(std::vector<Event>& events) {
  const kv::PageHandle* page = cache_.NextPage(scrub_page_);
  if (page == nullptr) page = cache_.NextPage(PageId());
  if (page == nullptr) return false;
  scrub_page_ = PageId(page->page().value() + 1);
  ++counters_.checks[CheckKind::kScrub].made;
  if (pool_.PayloadMatches(*page) && (pool_.TagsMatch(page->page(), page->generation()) || FaultIsOn(Fault::kTagsNotCompared)))
    return true;
  CondemnCached(*page, events);
  return true;
}

void Engine::CondemnCached(const kv::PageHandle& page, std::vector<Event>& events) {
  ++counters_.checks[CheckKind::kScrub].failed;
  events.push_back(CachedPageWrongEvent{.wrong = {.kind = CheckKind::kScrub,
                                                  .page = page.page(),
                                                  .expected = page.generation(),
                                                  .found = pool_.GenerationOf(page.page()),
                                                  .in_memory = pool_.GenerationInMemory(page.page())}});
  cache_.Condemn(page.page(), NowUnderWay());
  // Whoever computes from it ends with the next check of its tags; who only holds it for others makes none.
  std::vector<Sequence*> holders;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->state == SequenceState::kHeld && std::ranges::any_of(sequence->pages, &PageRef::bad))
      holders.push_back(sequence.get());
  }
  for (Sequence* holder : holders) {
    std::vector<WrongPage> wrong;
    for (uint32_t i = 0; i < holder->pages.size(); ++i) {
      if (holder->pages[i].bad()) wrong.push_back(Describe(*holder, i, CheckKind::kScrub));
    }
    counters_.checks[CheckKind::kScrub].failed += wrong.size();
    FailOnWrong(*holder, std::move(wrong), events);
  }
}

bool Engine::ScrubNextOwned(std::vector<Event>& events) {
  // At most once around.
  for (size_t sequences = sequences_.size() + 1; sequences > 0; --sequences) {
    auto found = sequences_.lower_bound(scrub_sequence_);
    if (found == sequences_.end()) found = sequences_.begin();
    if (found == sequences_.end()) return false;
    Sequence& sequence = *found->second;
    if (sequence.id != scrub_sequence_) scrub_ordinal_ = 0;
    scrub_sequence_ = sequence.id;
    // Pages of the cache are looked at there, once for all that share them.
    const auto in_tree = [&](uint32_t i) { return sequence.pages[i].pin() != nullptr && sequence.pages[i].pin()->in_tree(); };
    while (scrub_ordinal_ < sequence.sealed_pages && in_tree(scrub_ordinal_)) ++scrub_ordinal_;
    // Its pages are checked when it runs: until then others count on it to be there.
    if (scrub_ordinal_ >= sequence.sealed_pages || sequence.state == SequenceState::kWaiting) {
      scrub_sequence_ = SequenceId(sequence.id.value() + 1);
      scrub_ordinal_ = 0;
      continue;
    }
    std::vector<WrongPage> wrong;
    CheckPayload(sequence, scrub_ordinal_++, CheckKind::kScrub, wrong);
    if (!wrong.empty()) FailOnWrong(sequence, std::move(wrong), events);
    return true;
  }
  return false;
}

void Engine::Scrub(size_t max_bytes, std::vector<Event>& events) {
  // More than once around is of no use.
  for (uint64_t left = std::min<uint64_t>(max_bytes / pool_.layout().payload_bytes(), pool_.total_pages()); left > 0; --left) {
    // Owned pages and those of the cache take turns.
    scrub_cache_next_ = !scrub_cache_next_;
    const bool found =
        scrub_cache_next_ ? ScrubCached(events) || ScrubNextOwned(events) : ScrubNextOwned(events) || ScrubCached(events);
    if (!found) return;
  }
}

}  // namespace cofferdam::engine
