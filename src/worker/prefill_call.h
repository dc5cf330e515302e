// One Prefill.Run stream on the side that fetches. It passes messages between gRPC's threads and the engine's.
#ifndef COFFERDAM_WORKER_PREFILL_CALL_H_
#define COFFERDAM_WORKER_PREFILL_CALL_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "cofferdam.grpc.pb.h"
#include "worker/heartbeat.h"

namespace cofferdam::worker {

// Thread-safe. Lives until gRPC is done with it and nobody else holds it.
class PrefillCall final : public grpc::ClientBidiReactor<v1::PrefillRequest, v1::PrefillEvent>, public Beating {
 public:
  // Both are called on gRPC's threads; `on_ended` exactly once, last.
  struct Callbacks {
    std::function<void(v1::PrefillEvent)> on_event;
    std::function<void(absl::Status)> on_ended;
  };
  static std::shared_ptr<PrefillCall> Start(v1::Prefill::Stub& stub, v1::PrefillRequest open, Callbacks callbacks);

  // Cancels; nothing waits for it. Idempotent.
  void Close();
  void SetCovered(uint32_t pages) { covered_.store(pages, std::memory_order_relaxed); }
  void Beat() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  PrefillCall(v1::PrefillRequest open, Callbacks callbacks) : outgoing_(std::move(open)), callbacks_(std::move(callbacks)) {}
  void LetGo();

  grpc::ClientContext context_;
  v1::PrefillEvent incoming_;
  Mutex mutex_;
  v1::PrefillRequest outgoing_ CD_GUARDED_BY(mutex_);
  bool writing_ CD_GUARDED_BY(mutex_) = true;  // the opening message
  bool closed_ CD_GUARDED_BY(mutex_) = false;
  std::atomic<uint32_t> covered_{0};
  const Callbacks callbacks_;
  v1::Attempt attempt_;
  std::shared_ptr<PrefillCall> self_;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_PREFILL_CALL_H_
