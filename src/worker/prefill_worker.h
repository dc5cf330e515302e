// The prefill server: computes prompts for decode workers and pins the pages as long as their streams live.
#ifndef COFFERDAM_WORKER_PREFILL_WORKER_H_
#define COFFERDAM_WORKER_PREFILL_WORKER_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "cofferdam.grpc.pb.h"
#include "fabric/fabric.h"
#include "handoff/prefill_handoff.h"
#include "worker/engine_loop.h"
#include "worker/heartbeat.h"
#include "worker/worker.h"

namespace cofferdam::worker {

class PrefillStream;
using RunId = StrongId<struct RunIdTag, uint64_t>;

// Everything that is not said to be thread-safe runs on the engine's thread.
class PrefillWorker final : public v1::Prefill::CallbackService, public LoopClient {
 public:
  // Serves the region over the fabric and starts the engine's thread. Errors: those of fabric::Serve.
  static absl::StatusOr<std::unique_ptr<PrefillWorker>> Create(std::unique_ptr<WorkerCore> core);
  // REQUIRES: the gRPC server that this service was registered with is shut down and gone.
  ~PrefillWorker() override;

  // gRPC's threads.
  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const v1::InfoRequest* request,
                                 v1::WorkerInfo* info) override;
  grpc::ServerBidiReactor<v1::PrefillRequest, v1::PrefillEvent>* Run(grpc::CallbackServerContext* context) override;

  // Thread-safe; called by streams.
  EngineLoop& loop() { return loop_; }
  uint64_t steps() const { return steps_.load(std::memory_order_relaxed); }

  // Posted by streams.
  void OnOpen(std::shared_ptr<PrefillStream> stream, v1::PrefillRequest request);
  void OnPeerHeartbeat(RunId id, uint32_t covered_pages);
  void OnClosed(RunId id);

  void OnEvents(const std::vector<engine::Event>& events) override;
  void OnTurn(Clock::time_point now) override;

 private:
  struct Running {
    std::shared_ptr<PrefillStream> stream;
    handoff::AttemptId attempt;
    engine::SequenceSpec spec;
    std::string request_id, domain;
    std::optional<SequenceId> sequence;
    std::unique_ptr<handoff::PrefillHandoff> handoff;
  };

  explicit PrefillWorker(std::unique_ptr<WorkerCore> core);
  absl::StatusOr<engine::SequenceSpec> SpecOf(const v1::PrefillRequest& request) const;
  std::vector<handoff::AnnouncedPage> Announce(const std::vector<engine::SealedEvent>& sealed) const;
  void Act(RunId id, handoff::PrefillActions& actions);
  static Ledger::Owner OwnerOf(const Running& run);
  void StartWaiting();
  void Publish();

  std::unique_ptr<WorkerCore> core_;
  std::unique_ptr<fabric::Source> source_;
  std::map<RunId, Running> runs_;
  std::map<SequenceId, RunId> by_sequence_;
  std::set<std::pair<uint64_t, RunId>> queue_;  // by their order: they wait for pages and hold nothing
  Clock::time_point published_{};
  std::atomic<uint64_t> next_run_{1};
  std::atomic<uint64_t> steps_{0};
  uint64_t opened_ = 0;
  EngineLoop loop_;
  kv::Zeroer zeroer_{[this] { loop_.Post([] {}); }};  // wakes a loop that waits for pages
  Heartbeats heartbeats_;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_PREFILL_WORKER_H_
