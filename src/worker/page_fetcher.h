// Fetches pages of prompts from other workers: drives the sans-IO machine of a handoff with gRPC streams and fabric reads.
//
// A fetch is either a handoff, of pages that a prefill worker computes for it, or a pull, of pages that lie in another worker's
// prefix cache. Both are the same reads with the same checks.
#ifndef COFFERDAM_WORKER_PAGE_FETCHER_H_
#define COFFERDAM_WORKER_PAGE_FETCHER_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/histogram.h"
#include "base/mutex.h"
#include "base/strong_id.h"
#include "cofferdam.grpc.pb.h"
#include "handoff/decode_handoff.h"
#include "worker/engine_loop.h"
#include "worker/heartbeat.h"
#include "worker/prefill_call.h"
#include "worker/prefill_peer.h"
#include "worker/worker.h"

namespace cofferdam::worker {

using FetchId = StrongId<struct FetchIdTag, uint64_t>;

// What is fetched, and for whom.
struct FetchSpec {
  std::shared_ptr<PrefillPeer> peer{};  // ready
  SequenceId sequence{};                // waits for the pages
  kv::Key domain_key{};
  std::string request_id{}, domain{}, cache_salt{};
  std::vector<TokenId> tokens{};  // that the pages hold, all from the prompt's start
  uint32_t first_page = 0;        // those before it are there; at least one is wanted
  uint32_t priority = 0;
  bool recompute = false;  // a handoff: nothing of this prompt comes from the peer's prefix cache
  bool pull = false;       // nothing is computed: tokens fill whole pages, and the peer has them all or says no
};

struct FetchFailure {
  absl::Status status{};
  bool retry_elsewhere = false;
  bool sequence_gone = false;  // a tag was wrong: the engine has ended the sequence
  uint32_t adopted_pages = 0;
};

// What became of a fetch. Called on the engine's thread: either on_covered, or on_failed and later on_quiet. The last one ends it.
struct FetchCallbacks {
  // All pages are adopted, and checked against the sequence's own tokens. How many that were.
  std::function<void(uint32_t)> on_covered;
  // Nothing of it may be used, and the sequence must not be released before on_quiet: reads may still be under way.
  std::function<void(const FetchFailure&)> on_failed;
  std::function<void()> on_quiet;
};

// The engine's thread only, but for what comes before the loop runs (constructor, PeerAt), and Stop.
class PageFetcher {
 public:
  // `core`, `loop` and `heartbeats` are not owned and outlive Stop. `peers`: how many there will be, at most.
  PageFetcher(WorkerCore& core, EngineLoop& loop, Heartbeats& heartbeats, size_t peers);

  // The peer at an address, known or new. Before the loop runs.
  std::shared_ptr<PrefillPeer> PeerAt(const std::string& address);

  // REQUIRES: the peer's state is ready.
  FetchId Start(FetchSpec spec, FetchCallbacks callbacks);
  // Fails it with Cancelled, unless it has failed before.
  void Cancel(FetchId id);
  // Whether it has neither failed nor ended.
  bool running(FetchId id) const;

  // Every turn of the loop.
  void OnTurn(Clock::time_point now);
  // Ends all streams and waits until no callback of gRPC or the fabric names this object. From another thread, while the loop runs.
  void Stop();

  struct Counters {
    struct Kind {
      uint64_t started = 0, completed = 0, failed = 0, pages = 0;
    } handoffs, pulls;
    uint64_t reads = 0, reads_failed = 0, late_reads = 0, read_bytes = 0, stale_messages = 0;
  };
  const Counters& counters() const { return counters_; }
  void AddMetrics(std::vector<v1::Metric>& metrics) const;

 private:
  struct Fetch {
    FetchSpec spec;
    FetchCallbacks callbacks;
    std::shared_ptr<fabric::Reader> reader;
    uint64_t origin = 0;  // the peer's boot id
    handoff::AttemptId attempt;
    std::shared_ptr<PrefillCall> call;
    std::unique_ptr<handoff::DecodeHandoff> handoff;
    bool sequence_gone = false;
  };
  // How one read went, told by the fabric's thread.
  struct ReadResult {
    uint32_t ordinal;
    kv::Arrived at;
    absl::StatusOr<kv::Arrival> arrival;
    Clock::duration transfer, verification;
#ifdef COFFERDAM_FAULTS
    std::optional<kv::FaultKind> fault{};
#endif
  };

  void OpenStream(FetchId id, Fetch& fetch);
  void OnPrefillEvent(FetchId id, const v1::PrefillEvent& event);
  void OnPrefillEnded(FetchId id, const absl::Status& status);
  // Carries actions out; may end the fetch.
  void Act(FetchId id, handoff::DecodeActions actions);
  void IssueRead(FetchId id, Fetch& fetch, const handoff::IssueRead& read);
  void OnRead(FetchId id, const ReadResult& read);
  void JudgeSeal(const Fetch& fetch, const ReadResult& read);
  void OfferWindow();
  // Tells every fetch of something, oldest first, and carries out what comes of it.
  void ActOnAll(const std::function<void(handoff::DecodeHandoff&, handoff::DecodeActions&)>& event);
  // False when the page could not be adopted: then the fetch has failed.
  bool Adopt(FetchId id, const handoff::Adopt& adopt);
  void OnComplete(FetchId id);
  // The pages are verified and hold other numbers than this prompt's: nothing ran on them.
  void OnWrongPages(const Fetch& fetch, kv::CheckKind check, const absl::Status& status);
  // The page of a read or of a prompt whose check failed on the way: it retires, and another worker is asked.
  void RecordOnTheWay(const Fetch& fetch, kv::CheckKind kind, PageId page, Generation generation, const std::string& detail);
  Counters::Kind& CountersOf(const Fetch& fetch) { return fetch.spec.pull ? counters_.pulls : counters_.handoffs; }
  Fetch* Find(FetchId id);
  void CountCalls(int change);  // thread-safe

  WorkerCore& core_;
  EngineLoop& loop_;
  Heartbeats& heartbeats_;
  handoff::TransferWindow all_peers_;
  std::vector<std::shared_ptr<PrefillPeer>> peers_;
  std::map<FetchId, Fetch> fetches_;  // oldest first
  uint64_t next_fetch_ = 1;
  Counters counters_;
  SecondsHistogram transfer_seconds_, verification_seconds_;
  Mutex calls_mutex_;
  CondVar calls_changed_;
  int live_calls_ CD_GUARDED_BY(calls_mutex_) = 0;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_PAGE_FETCHER_H_
