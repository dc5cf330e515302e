// One step of the engine: compose, check, compute, check again, advance.
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/faults.h"
#include "engine/engine.h"
#ifdef COFFERDAM_FAULTS
#include "engine/injector.h"
#endif
#include "engine/sequence.h"

namespace cofferdam::engine {
std::vector<Engine::Slice> Engine::Compose() {
  std::vector<Slice> slices;
  uint32_t rows_left = options_.chunk_tokens;
  // Sequences that generate first: each needs one row, and none waits for another's prompt.
  for (const bool prompts : {false, true}) {
    for (Sequence* sequence : running_) {
      if (sequence->stalled) continue;
      const uint64_t ahead = sequence->tokens.size() - sequence->covered();
      if ((ahead > 1) != prompts || rows_left == 0) continue;
      const auto rows = static_cast<uint32_t>(std::min<uint64_t>(ahead, rows_left));
      rows_left -= rows;
      slices.push_back({.sequence = sequence, .rows = rows, .wants_logits = sequence->generates() && rows == ahead});
    }
  }
  return slices;
}

absl::StatusOr<std::span<const float>> Engine::Compute(std::vector<Slice>& slices) {
  rows_.clear();
  tables_.clear();
  sums_.clear();
  for (Slice& slice : slices) {
    Sequence& sequence = *slice.sequence;
    slice.first_row = rows_.size();
    const bool placeholder = FaultIsOn(Fault::kPlaceholderPrompt) && !sequence.generates();
    const auto table = static_cast<uint32_t>(tables_.size());
    tables_.push_back(sequence.payloads);
    if (options_.verify_reads.mode == VerifyReads::Mode::kFull) sums_.push_back(sequence.sums);
    const uint64_t first = sequence.covered();
    for (uint64_t position = first; position < first + slice.rows; ++position) {
      const PageRef& page = sequence.pages[position / pool_.layout().page_tokens()];
      if (pool_.StateOf(page.page()) == kv::PageState::kReserved) pool_.MarkFilling(page);
      CD_CHECK(pool_.StateOf(page.page()) == kv::PageState::kFilling, "a sealed page is never written");
      rows_.push_back({.token = placeholder ? 1 : sequence.tokens[position],
                       .position = static_cast<uint32_t>(position),
                       .table = table,
                       .wants_logits = slice.wants_logits && position + 1 == first + slice.rows});
    }
  }
  counters_.rows += rows_.size();
  return executor_.Run({.rows = rows_, .tables = tables_, .sums = sums_});
}

void Engine::Step(std::vector<Event>& events) {
  std::ranges::move(found_, std::back_inserter(events));
  found_.clear();
  if (!HasWork()) return;
  Grow(events);
  ++steps_started_;
#ifdef COFFERDAM_FAULTS
  ComputeLateRows();
#endif
  std::vector<Slice> slices = Compose();
#ifdef COFFERDAM_FAULTS
  if (injector_ != nullptr) injector_->Disturb(*this, slices);
#endif
  CheckBeforeStep(slices, events);
  std::erase_if(slices, [](const Slice& slice) { return slice.sequence == nullptr; });
  if (slices.empty()) {
    steps_ended_ = steps_started_;
    return;
  }
#ifdef COFFERDAM_FAULTS
  if (injector_ != nullptr) injector_->Disturb(*this, slices);
#endif
  const absl::StatusOr<std::span<const float>> logits = Compute(slices);
  steps_ended_ = steps_started_;
  ++counters_.steps;
  if (!logits.ok()) {
    for (Slice& slice : slices) {
      events.push_back(FailedEvent{.sequence = slice.sequence->id, .status = logits.status(), .wrong = {}});
      Erase(*slice.sequence, {});
    }
    return;
  }
  std::vector<bool> had_logits;
  for (const Slice& slice : slices) had_logits.push_back(slice.wants_logits);
  CountDue(slices);
  CheckAfterStep(slices, events);
  const size_t vocabulary = executor_.vocabulary();
  const float* row = logits->data();
  for (size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].sequence != nullptr) Advance(slices[i], row, events);
    if (had_logits[i]) row += vocabulary;
  }
  CD_CHECK(row == logits->data() + logits->size(), "every row that wanted logits got its own");
}

void Engine::Advance(Slice& slice, const float* logits, std::vector<Event>& events) {
  Sequence& sequence = *slice.sequence;
  // From the batch that was computed, not from the request: so a page's identity says what is really in it.
  for (size_t i = 0; i < slice.rows; ++i) sequence.fed.push_back(rows_[slice.first_row + i].token);
  if (slice.rows > 1 || !slice.wants_logits) counters_.prefill_tokens += slice.rows;
  SealFullPages(sequence, events);
  if (slice.wants_logits) {
    Sample(sequence, logits, events);
  } else if (!sequence.generates() && sequence.covered() == sequence.tokens.size()) {
    sequence.state = SequenceState::kHeld;
    std::erase(running_, &sequence);
  }
}

void Engine::SealFullPages(Sequence& sequence, std::vector<Event>& events) {
  const uint32_t page_tokens = pool_.layout().page_tokens();
  const bool complete = !sequence.generates() && sequence.covered() == sequence.tokens.size();
  while (true) {
    const uint64_t start = uint64_t{sequence.sealed_pages} * page_tokens;
    const uint64_t count = std::min<uint64_t>(sequence.covered() - start, page_tokens);
    if (count == 0 || (count < page_tokens && !complete)) return;
    const PageRef& page = sequence.pages[sequence.sealed_pages];
    if (FaultIsOn(Fault::kCoverageNotCounted) && pool_.StateOf(page.page()) == kv::PageState::kReserved) pool_.MarkFilling(page);
    // The identity is what was fed, never what was asked for.
    const TokenId* const named = FaultIsOn(Fault::kIdentityFromRequest) ? sequence.tokens.data() : sequence.fed.data();
    const kv::Digest128 identity = sequence.chain.Append({named + start, count});
    const kv::Seal seal = pool_.SealPage(page, identity, static_cast<uint32_t>(count));
    ++counters_.pages_sealed;
    sequence.sums.push_back(pool_.RunChecksumsOf(page).data());
    if (!sequence.generates()) {
      events.push_back(SealedEvent{.sequence = sequence.id,
                                   .ordinal = sequence.sealed_pages,
                                   .page = page.page(),
                                   .generation = page.generation(),
                                   .seal = seal});
    }
    ++sequence.sealed_pages;
    if (count < page_tokens) return;
    Share(sequence, sequence.sealed_pages - 1);
  }
}

void Engine::Sample(Sequence& sequence, const float* logits, std::vector<Event>& events) {
  const std::span<const float> row(logits, executor_.vocabulary());
  const uint32_t index = sequence.spec.resumed_tokens + sequence.generated;
  const std::vector<TokenId>& stops = sequence.spec.stop_tokens;
  const bool may_stop = index >= sequence.spec.min_output;
  float logprob = 0;
  const TokenId token = sequence.sampler->Sample(row, index, &logprob, may_stop ? std::span<const TokenId>() : stops);
  sequence.sampler->Accept(token);
  sequence.tokens.push_back(token);
  ++sequence.generated;
  ++counters_.generated_tokens;
  events.push_back(TokenEvent{.sequence = sequence.id,
                              .index = index,
                              .token = token,
                              .logprob = logprob,
                              .top = model::TopLogprobs(row, sequence.spec.top_logprobs)});
  const bool stopped = may_stop && std::find(stops.begin(), stops.end(), token) != stops.end();
  if (!stopped && sequence.generated < sequence.spec.max_output) return;
#ifdef COFFERDAM_FAULTS
  if (FaultIsOn(Fault::kFinishedRowComputes)) AddLateRow(sequence);
#endif
  events.push_back(FinishedEvent{.sequence = sequence.id,
                                 .reason = stopped ? FinishReason::kStop : FinishReason::kLength,
                                 .generated = sequence.generated,
                                 .checks = sequence.checks});
  Erase(sequence, {});
}

#ifdef COFFERDAM_FAULTS

void Engine::AddLateRow(const Sequence& sequence) {
  // Where its next page is not there yet, the step would have waited.
  if ((sequence.tokens.size() - 1) / pool_.layout().page_tokens() >= sequence.pages.size()) return;
  late_rows_.push_back({.tenures = {},
                        .payloads = sequence.payloads,
                        .token = sequence.tokens.back(),
                        .position = static_cast<uint32_t>(sequence.tokens.size() - 1)});
  for (const PageRef& page : sequence.pages) late_rows_.back().tenures.emplace_back(page.page(), page.generation());
}

// A batch of its own, before that of the step: what they write lies there when the step reads.
void Engine::ComputeLateRows() {
  for (const LateRow& row : std::exchange(late_rows_, {})) {
    bool own = true;
    for (const auto& [page, generation] : row.tenures) own = own && pool_.TagsMatch(page, generation);
    if (!own && !FaultIsOn(Fault::kTagsNotCompared)) {
      ++counters_.checks[kv::CheckKind::kTags].failed;
      continue;
    }
    const model::BatchRow batch{.token = row.token, .position = row.position, .table = 0, .wants_logits = false};
    const std::span<std::byte* const> table(row.payloads);
    CD_CHECK(executor_.Run({.rows = {&batch, 1}, .tables = {&table, 1}, .sums = {}}).ok(), "the row computed before");
  }
}

#endif

}  // namespace cofferdam::engine
