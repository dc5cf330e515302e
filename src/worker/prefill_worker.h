// The prefill worker: computes prompts for decode workers and serves the pages.
#ifndef COFFERDAM_WORKER_PREFILL_WORKER_H_
#define COFFERDAM_WORKER_PREFILL_WORKER_H_

#include <memory>
#include <vector>

#include "worker/engine_loop.h"
#include "worker/heartbeat.h"
#include "worker/page_fetcher.h"
#include "worker/page_server.h"
#include "worker/worker.h"

namespace cofferdam::worker {

class PrefillWorker final : public LoopClient {
 public:
  // Serves the region over the fabric and starts the engine's thread. Errors: those of fabric::Serve.
  static absl::StatusOr<std::unique_ptr<PrefillWorker>> Create(std::unique_ptr<WorkerCore> core);
  // REQUIRES: the gRPC server that its services were registered with is shut down and gone.
  ~PrefillWorker() override;

  std::vector<grpc::Service*> services() { return {&*server_}; }

  // The engine's thread.
  void OnEvents(const std::vector<engine::Event>& events) override;
  void OnTurn(Clock::time_point now) override;

 private:
  explicit PrefillWorker(std::unique_ptr<WorkerCore> core);

  std::unique_ptr<WorkerCore> core_;
  Clock::time_point published_{};
  std::unique_ptr<PageServer> server_;
  EngineLoop loop_;
  kv::Zeroer zeroer_{[this] { loop_.Post([] {}); }};  // wakes a loop that waits for pages
  Heartbeats heartbeats_;
  PageFetcher fetcher_;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_PREFILL_WORKER_H_
