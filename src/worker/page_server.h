// Serves pages of one worker to others, and pins them as long as their streams live: those that it computes for them, and those
// that lie in its prefix cache.
#ifndef COFFERDAM_WORKER_PAGE_SERVER_H_
#define COFFERDAM_WORKER_PAGE_SERVER_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cofferdam.grpc.pb.h"
#include "fabric/fabric.h"
#include "handoff/prefill_handoff.h"
#include "worker/engine_loop.h"
#include "worker/heartbeat.h"
#include "worker/page_fetcher.h"
#include "worker/worker.h"

namespace cofferdam::worker {

class PrefillStream;
using RunId = StrongId<struct RunIdTag, uint64_t>;

// Everything that is not said to be thread-safe runs on the engine's thread.
//
// What waits for what: a run that computes waits for pages of its pool and, when it pulls, for a run of another worker that is
// served from a cache. Such a run reserves nothing and waits for nobody, so that no circle can close.
class PageServer final : public v1::Prefill::CallbackService {
 public:
  // All are not owned and outlive the server. `computes`: prompts are computed for others; without it only what is cached is
  // served. `pull_from`: peers of `fetcher`; a run whose opener holds pages that are missing here, and is one of them, has them
  // pulled from it.
  struct Options {
    WorkerCore& core;
    EngineLoop& loop;
    Heartbeats& heartbeats;
    PageFetcher& fetcher;
    bool computes = false;
    std::vector<std::shared_ptr<PrefillPeer>> pull_from{};
  };
  // Serves the region over the fabric. Errors: those of fabric::Serve.
  static absl::StatusOr<std::unique_ptr<PageServer>> Create(Options options);
  // REQUIRES: the gRPC server that this service was registered with is shut down and gone, and the loop has ended.
  ~PageServer() override = default;

  // gRPC's threads.
  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const v1::InfoRequest* request,
                                 v1::WorkerInfo* info) override;
  grpc::ServerUnaryReactor* Find(grpc::CallbackServerContext* context, const v1::FindRequest* request, v1::Found* found) override;
  grpc::ServerBidiReactor<v1::PrefillRequest, v1::PrefillEvent>* Run(grpc::CallbackServerContext* context) override;

  // Thread-safe; called by streams.
  EngineLoop& loop() { return loop_; }
  uint64_t steps() const { return steps_.load(std::memory_order_relaxed); }

  // Posted by streams.
  void OnOpen(std::shared_ptr<PrefillStream> stream, v1::PrefillRequest request);
  void OnPeerHeartbeat(RunId id, uint32_t covered_pages);
  void OnClosed(RunId id);

  bool owns(SequenceId sequence) const { return by_sequence_.contains(sequence); }
  // Of sequences that it owns; others are ignored, but for one that failed.
  void OnEvents(const std::vector<engine::Event>& events);
  // Every turn of the loop.
  void OnTurn(Clock::time_point now);

  uint32_t waiting() const { return static_cast<uint32_t>(queue_.size()); }
  void AddMetrics(std::vector<v1::Metric>& metrics) const;

 private:
  struct Running {
    std::shared_ptr<PrefillStream> stream;
    handoff::AttemptId attempt;
    engine::SequenceSpec spec;
    std::string request_id, domain, cache_salt;
    uint32_t first_page = 0;  // those before it are the opener's
    bool cached_only = false;
    std::optional<SequenceId> sequence;
    std::unique_ptr<handoff::PrefillHandoff> handoff;
    std::optional<FetchId> pull;  // under way: nothing is announced yet
    bool may_pull = false;
  };

  explicit PageServer(Options options);
  absl::StatusOr<engine::SequenceSpec> SpecOf(const v1::PrefillRequest& request) const;
  absl::Status Judge(const v1::Open& open, const engine::SequenceSpec& spec) const;
  std::vector<handoff::AnnouncedPage> Announce(const std::vector<engine::SealedEvent>& sealed) const;
  void Act(RunId id, handoff::PrefillActions& actions);
  static Ledger::Owner OwnerOf(const Running& run);
  void StartWaiting();
  void ServeCached(RunId id);
  void Own(RunId id, SequenceId sequence);
  // Its pages are there, or come from here.
  void Launch(RunId id);
  // False when there is nothing to pull.
  bool Pull(RunId id);
  void OnPullFailed(RunId id, const FetchFailure& failure);
  void OnPullQuiet(RunId id);
  void OnFailed(const engine::FailedEvent& failed);

  WorkerCore& core_;
  EngineLoop& loop_;
  Heartbeats& heartbeats_;
  PageFetcher& fetcher_;
  const bool computes_;
  const std::vector<std::shared_ptr<PrefillPeer>> pull_from_;
  std::unique_ptr<fabric::Source> source_;
  std::map<RunId, Running> runs_;
  std::map<SequenceId, RunId> by_sequence_;
  std::set<std::pair<uint64_t, RunId>> queue_;  // by their order: they wait for pages and hold nothing
  std::atomic<uint64_t> next_run_{1};
  std::atomic<uint64_t> steps_{0};
  uint64_t opened_ = 0, served_cached_ = 0;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_PAGE_SERVER_H_
