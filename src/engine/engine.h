// Continuous batching over pages: sequences in, tokens and sealed pages out.
//
// One step runs one batch: a row for every sequence that generates, then chunks of prompts, oldest first. Invariants
// kept here:
//   I5   a row runs only when every token before it is covered: computed here, or in a page whose seal was verified;
//   I6   the tags of every page of the batch are compared before the step and again after it, before sampling, and the
//        bytes of its sealed pages as VerifyReads says; what a step computed is what its sequences asked for;
//   I7   a page released while a step could touch it carries that step's epoch;
//   I11  a sequence grows page by page; when no page is left the last in order gives all of its own back, and the first in order
//        is never asked to;
//   I12  a sequence whose check fails ends alone: its logits are dropped, the page is quarantined.
#ifndef COFFERDAM_ENGINE_ENGINE_H_
#define COFFERDAM_ENGINE_ENGINE_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/strong_id.h"
#include "engine/verify.h"
#include "kv/admission.h"
#include "kv/checks.h"
#include "kv/pool.h"
#include "kv/prefix_cache.h"
#include "kv/seal.h"
#include "model/computation.h"
#include "model/sampler.h"

namespace cofferdam::engine {

// What a sequence is to do. With `sampling` it generates; without, its pages are the result (a prefill worker).
struct SequenceSpec {
  kv::Key domain_key{};
  std::string domain{};  // its name: pages are shared only within it
  std::vector<TokenId> tokens{};
  // Of `tokens`, how many at the end are earlier output of the same request: they move the draw positions.
  uint32_t resumed_tokens = 0;
  uint32_t max_output = 0;
  std::optional<model::SamplingParams> sampling{};
  std::vector<TokenId> stop_tokens{};
  // No stop token is chosen before the answer, with `resumed_tokens`, has so many tokens.
  uint32_t min_output = 0;
  uint32_t top_logprobs = 0;  // each token comes with so many of the most likely ones, kMaxTopLogprobs at most
  // Who goes first in a step, and who is preempted last: those of the lowest. Equals stand as they came.
  uint64_t order = 0;
};

enum class FinishReason { kStop, kLength };

struct TokenEvent {
  SequenceId sequence;
  uint32_t index = 0;  // counts from the end of the original prompt
  TokenId token = 0;
  float logprob = 0;
  std::vector<model::TokenLogprob> top{};  // as many as were asked for, the likeliest first
};
struct FinishedEvent {
  SequenceId sequence;
  FinishReason reason = FinishReason::kStop;
  uint32_t generated = 0;
  kv::CheckCounts checks;  // made for this sequence alone
};
// A page of a prefill-only sequence, full or the prompt's last, sealed in the step that just ended.
struct SealedEvent {
  SequenceId sequence;
  uint32_t ordinal = 0;
  PageId page;
  Generation generation;
  kv::Seal seal;
};
// A page that failed a check.
struct WrongPage {
  kv::CheckKind kind = kv::CheckKind::kTags;
  PageId page;
  uint32_t ordinal = 0;  // in its sequence
  Generation expected;   // of the page table
  Generation found;      // in the pool's record
  Generation in_memory;  // in the page's head tag
};
// The sequence took a page more.
struct GrownEvent {
  SequenceId sequence;
  PageId page;
  Generation generation;
};
// The sequence starts with a copy of what it found in this page of another one: it has read it.
struct CopiedEvent {
  SequenceId sequence;
  PageId page;
  Generation generation;
};
// The sequence had to give its pages back to those before it, and is gone. One that is started with what it generated at the end
// of its tokens, as resumed ones, goes on as if nothing had happened.
struct PreemptedEvent {
  SequenceId sequence;
  std::vector<TokenId> generated;
  kv::CheckCounts checks;
};
// The sequence was ended by a failed check or a failed computation; its handles are gone already.
struct FailedEvent {
  SequenceId sequence;
  absl::Status status;
  std::vector<WrongPage> wrong;  // quarantined, unless its rows were wrong; none when a computation failed
};
// A page of the prefix cache, found wrong by the scrubber or when it was to be used again; quarantined with its last reader.
struct CachedPageWrongEvent {
  WrongPage wrong;
};
using Event = std::variant<TokenEvent, FinishedEvent, SealedEvent, GrownEvent, CopiedEvent, PreemptedEvent, FailedEvent,
                           CachedPageWrongEvent>;

// Whose event it is; none's, of a cached page.
inline SequenceId SequenceOf(const Event& event) {
  return std::visit(
      [](const auto& e) {
        if constexpr (requires { e.sequence; }) {
          return e.sequence;
        } else {
          return SequenceId();
        }
      },
      event);
}

struct EngineCounters {
  uint64_t steps = 0;
  uint64_t rows = 0;
  uint64_t prefill_tokens = 0;
  uint64_t generated_tokens = 0;
  kv::CheckCounts checks;
  // What the steps that were run must have checked, counted where a batch is made and not where it is checked.
  uint64_t tag_checks_due = 0;
  uint64_t row_checks_due = 0;
  uint64_t payload_checks_due = 0;
  uint64_t content_checks_due = 0;
  std::chrono::nanoseconds check_time{0};  // of the engine's thread; `full` checks bytes in the attention's threads besides
  uint64_t pages_adopted = 0;
  uint64_t pages_sealed = 0;
  uint64_t pages_grown = 0;
  uint64_t tokens_copied = 0;  // from pages that other sequences were filling
  uint64_t stalls = 0;         // steps that a sequence sat out for want of a page
  uint64_t preemptions = 0;
  uint64_t preempted_tokens = 0;  // that were covered, and must be again
};

struct EngineOptions {
  std::string role;  // in messages
  uint64_t context_tokens = 0;
  uint32_t chunk_tokens = 512;   // of prompts, at most, in one step
  uint32_t max_sequences = 256;  // that run at once
  // Of an output, what is reserved at the start; the rest is taken page by page, and from the youngest when none is left.
  uint32_t first_output_tokens = std::numeric_limits<uint32_t>::max();
  VerifyReads verify_reads{};
  bool verify_content = true;
  bool prefix_cache = false;  // sealed pages stay, to be used again by sequences of the same domain
  uint64_t sample_seed = 0;   // of the tokens that CheckContent looks at; random, so that no bug can know them
};

#ifdef COFFERDAM_FAULTS
class Injector;
#endif

// One thread calls everything. Sequences are named by ids that are never reused; an id that is gone is ignored by
// Release and refused by the rest.
class Engine {
 public:
  // `executor` and `pool` are not owned and outlive the engine.
  Engine(EngineOptions options, model::Computation& executor, kv::Pool& pool);
  ~Engine();

  struct Started {
    SequenceId sequence;
  };
  // Judges, looks cached pages up and pins them, and reserves the rest, in one action: all pages for prompt and the first part of
  // the output, or none; one more stays free for each that may still grow. Pages that are in the way are evicted then, for the next
  // call. A sequence that starts does nothing until Run. Rejected carries InvalidArgument for specs that can never run.
  [[nodiscard]] std::variant<Started, kv::MustWait, kv::Rejected> Start(SequenceSpec spec);
  // Pins cached pages for readers until Release: those of all of the spec's tokens, which fill whole pages, or none. It never waits
  // and reserves nothing. None when the cache does not hold them all.
  std::optional<SequenceId> HoldCached(SequenceSpec spec);
  // The same judgement without reserving anything; OK when the spec may run here sooner or later.
  absl::Status CheckSpec(const SequenceSpec& spec) const;

  // The pages of a handoff, for ordinals whose bytes a peer sends.
  struct PageView {
    PageId page;
    Generation generation;
    std::span<std::byte> payload;
    operator kv::Arrived() const { return {.page = page, .generation = generation, .payload = payload}; }  // NOLINT: a view of it
  };
  PageView PageAt(SequenceId sequence, uint32_t ordinal);
  // All pages of a sequence, in order, with their tenures.
  std::vector<std::pair<PageId, Generation>> TenuresOf(SequenceId sequence) const;
  // How many of its pages, from the first, were found in the cache: nobody needs to send them. Whole pages, and never the one of
  // the last token of a sequence that generates.
  uint32_t CachedPages(SequenceId sequence);
  // Of those, how many from the first came from a peer.
  uint32_t CachedPagesOfPeers(SequenceId sequence);
  // How many tokens behind the cached pages Run would copy now, from a page that another sequence of the domain fills.
  uint32_t TokensToCopy(SequenceId sequence);
  // The sealed pages of a sequence, in order: what SealedEvents say, for those that were found in the cache.
  std::vector<SealedEvent> SealedPages(SequenceId sequence);
  void HoldForTransfer(SequenceId sequence, uint32_t ordinal);
  // Takes page and generation since the sequence may have been released meanwhile.
  void EndTransfer(PageId page, Generation generation) { pool_.EndTransfer(page, generation); }
  // I4: joins a verified page to the page table; pages are adopted in any order. DataLoss when the tenure or the tags
  // are wrong: the page is quarantined and the sequence is gone.
  // `wrong`, unless null, then receives what was found.
  // `origin` names the worker that sent it, not 0.
  absl::Status Adopt(SequenceId sequence, uint32_t ordinal, const kv::Verified& page, uint64_t origin = 1,
                     WrongPage* wrong = nullptr);
  // Before Run, when pages were adopted. They must be named by the sequence's own tokens; and, with
  // EngineOptions::verify_content, layer 0's K and V of a token of every page, now and then of all tokens of one, are computed
  // again and compared: a seal proves which tokens a page was made for, not that its numbers are theirs. DataLoss when something
  // differs; the sequence keeps its pages, for the caller to release: the fault is the source's. Pages that an earlier call looked
  // at are not looked at again.
  // `failed`, unless null, then receives which check it was.
  absl::Status CheckAdopted(SequenceId sequence, kv::CheckKind* failed = nullptr);
  // REQUIRES: CheckAdopted found nothing, and the adopted pages are whole ones, from the start without a gap. They enter the cache
  // at once, for others to find while this sequence still waits for more.
  void ShareAdopted(SequenceId sequence);
  // I5: lets the sequence run; a prefill-only one whose pages were all found is done at once. Tokens in adopted pages, counted from
  // the start without a gap, are not computed again; nor are those that another sequence of the domain has in a page which it
  // fills.
  void Run(SequenceId sequence);

  // Nothing is found in the cache any more that begins as this prompt does. Returns how many pages that were.
  uint64_t ForgetCached(const SequenceSpec& spec);
  // The pages of this worker do not hold what they should: none of them in the cache, nor any behind them, is used again. Returns
  // how many those were.
  uint64_t DropOrigin(uint64_t origin);

  // Ends a sequence, in any state; its pages retire, or stay in the cache. Ids that are gone are ignored.
  void Release(SequenceId sequence);

#ifdef COFFERDAM_FAULTS
  // From the next step on. Not owned.
  void DisturbWith(Injector* injector) { injector_ = injector; }
#endif
  // From the next step on.
  void SetVerifyReads(VerifyReads verify) { options_.verify_reads = verify; }
  // Checks the bytes of sealed pages that lie there, of at most about `max_bytes`, going on where the last call ended.
  void Scrub(size_t max_bytes, std::vector<Event>& events);

#ifdef COFFERDAM_FAULTS
  bool HasWork() const { return !running_.empty() || !late_rows_.empty(); }
#else
  bool HasWork() const { return !running_.empty(); }
#endif
  // All that run, if any do, wait for a page: a step does nothing before one comes back.
  bool Stalled() const;
  // Runs one step, when there is work, and appends what came of it. Never fails as a whole: a computation that fails
  // ends the sequences that were in it.
  void Step(std::vector<Event>& events);
  // Every turn of the loop, with or without work (L9). Also keeps some room ahead of requests, where a full cache leaves none.
  size_t Reclaim();

  const EngineCounters& counters() const { return counters_; }
  const kv::Pool& pool() const { return pool_; }
  const kv::PrefixCache& cache() const { return cache_; }
  uint64_t context_tokens() const { return admission_.context_tokens(pool_.counts()); }
  size_t sequences() const { return sequences_.size(); }
  size_t running() const { return running_.size(); }

 private:
#ifdef COFFERDAM_FAULTS
  friend class Injector;
  Injector* injector_ = nullptr;
#endif
  struct Sequence;

  // The rows of one sequence in the batch under way.
  struct Slice {
    Sequence* sequence = nullptr;
    uint32_t rows = 0;
    bool wants_logits = false;
    size_t first_row = 0;  // in the batch
  };

  Sequence& Get(SequenceId id);
  StepEpoch NowUnderWay() const { return StepEpoch(steps_started_); }
  // Makes the page of this ordinal, just sealed or adopted, one that sequences of the domain may share.
  void Share(Sequence& sequence, uint32_t ordinal);
  // The cached pages that a sequence may begin with, pinned; their bytes were compared if there is room for the rest.
  std::vector<kv::PrefixCache::Pin> TakeCached(const SequenceSpec& spec, size_t most_pages);
  // Compares the bytes of all; when one is bad, looks again for what comes before it.
  std::vector<kv::PrefixCache::Pin> KeepGood(const SequenceSpec& spec, size_t most_pages, std::vector<kv::PrefixCache::Pin> cached);
  // Counts adopted pages as covered, from where that ended before.
  void CoverAdopted(Sequence& sequence);
  // Forks (fork.cc).
  struct Fork {
    const Sequence* from = nullptr;
    uint32_t tokens = 0;  // of the page that follows the sealed ones
  };
  // Who has most of the page that this sequence is to fill next; both have the same pages before it.
  Fork FindFork(const Sequence& sequence) const;
  void CopyFromFork(Sequence& sequence);
  SequenceId Make(SequenceSpec spec, std::vector<kv::PrefixCache::Pin> cached, std::vector<kv::PageHandle> pages);
  void CondemnCached(const kv::PageHandle& page, std::vector<Event>& events);
  absl::Status Judge(const SequenceSpec& spec) const;
  kv::AdmissionNeed NeedOf(const SequenceSpec& spec, size_t cached_pages) const;
  // Free pages, and those that come back without anybody's loss.
  uint64_t ComingPages() const;
  // Growth (growth.cc).
  uint64_t PagesWanted(const Sequence& sequence) const;  // for all of its output
  bool MayGrow(const Sequence& sequence) const;
  // Before a step: gives everybody whose table ends soon a page, or lets those stall whose next row has none.
  void Grow(std::vector<Event>& events);
  // False when no page is free.
  bool TakePage(Sequence& sequence, std::vector<Event>& events);
  // Has so many pages come back, from the cache and from those behind `sequence` in order, or as many as these have.
  void MakeRoom(uint64_t pages, const Sequence& sequence, std::vector<Event>& events);
  void Preempt(Sequence& sequence, std::vector<Event>& events);
  std::vector<Slice> Compose();
  // Checks (checks.cc). Each appends what is wrong.
  void CheckTags(Sequence& sequence, uint64_t end_tokens, std::vector<WrongPage>& wrong);
  void CheckRows(Slice& slice, std::vector<WrongPage>& wrong);
  void CheckPayload(Sequence& sequence, uint32_t ordinal, kv::CheckKind kind, std::vector<WrongPage>& wrong);
  void CheckBeforeStep(std::vector<Slice>& slices, std::vector<Event>& events);
  void CheckAfterStep(std::vector<Slice>& slices, std::vector<Event>& events);
  void CheckReadBytes(const Slice& slice, size_t table, std::vector<WrongPage>& wrong);
  // Each looks at one page; false when there is none.
  bool ScrubNextOwned(std::vector<Event>& events);
  bool ScrubCached(std::vector<Event>& events);
  void CountDue(const std::vector<Slice>& slices);
  void CheckSampledPages(std::vector<Slice>& slices, std::vector<std::vector<WrongPage>>& wrong);
  // Of adopted pages (content.cc).
  absl::Status CheckContent(Sequence& sequence);
  struct ContentSample {
    uint32_t ordinal, slot;
  };
  bool SameContent(const Sequence& sequence, std::span<const ContentSample> samples, absl::Status& status);
  WrongPage Describe(const Sequence& sequence, uint32_t ordinal, kv::CheckKind kind) const;
  void FailOnWrong(Sequence& sequence, std::vector<WrongPage> wrong, std::vector<Event>& events);
  absl::StatusOr<std::span<const float>> Compute(std::vector<Slice>& slices);
  void Advance(Slice& slice, const float* logits, std::vector<Event>& events);
  void SealFullPages(Sequence& sequence, std::vector<Event>& events);
  void Sample(Sequence& sequence, const float* logits, std::vector<Event>& events);
  void Erase(Sequence& sequence, const std::vector<PageId>& quarantine);

  EngineOptions options_;
  model::Computation& executor_;
  kv::Pool& pool_;
  kv::PrefixCache cache_;
  kv::Admission admission_;
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;  // by their order
  uint64_t next_sequence_ = 1;
  uint64_t steps_started_ = 0;
  uint64_t steps_ended_ = 0;
  EngineCounters counters_;
  std::vector<model::BatchRow> rows_;
  std::vector<std::span<std::byte* const>> tables_;
  std::vector<model::SealedSums> sums_;
  uint64_t next_sampled_ = 0;
  std::mt19937_64 sample_random_;
  uint64_t content_checks_ = 0;     // calls of CheckContent that looked
  std::vector<std::byte> scratch_;  // layer 0 of pages, computed again
#ifdef COFFERDAM_FAULTS
  // A row of a sequence that has ended, in the step that was under way (Fault::kFinishedRowComputes).
  struct LateRow {
    std::vector<std::pair<PageId, Generation>> tenures;
    std::vector<std::byte*> payloads;
    TokenId token = 0;
    uint32_t position = 0;
  };
  void AddLateRow(const Sequence& sequence);
  void ComputeLateRows();
  std::vector<LateRow> late_rows_;
  // By domain and tokens, of those that wait (Fault::kPinAfterLookup).
  std::map<std::pair<std::string, std::vector<TokenId>>, std::vector<PageId>> looked_up_;
#endif
  // Where the scrubber goes on.
  SequenceId scrub_sequence_;
  uint32_t scrub_ordinal_ = 0;
  PageId scrub_page_;
  std::vector<Event> found_;  // by Start, for the next step
  bool scrub_cache_next_ = false;
};

}  // namespace cofferdam::engine

#endif  // COFFERDAM_ENGINE_ENGINE_H_
