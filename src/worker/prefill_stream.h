// One Prefill.Run stream on the server's side. It passes messages between gRPC's threads and the engine's.
#ifndef COFFERDAM_WORKER_PREFILL_STREAM_H_
#define COFFERDAM_WORKER_PREFILL_STREAM_H_

#include <memory>

#include "cofferdam.grpc.pb.h"
#include "worker/heartbeat.h"
#include "worker/page_server.h"
#include "worker/write_queue.h"

namespace cofferdam::worker {

// Lives until gRPC is done with it and nobody else holds it.
class PrefillStream final : public grpc::ServerBidiReactor<v1::PrefillRequest, v1::PrefillEvent>, public Beating {
 public:
  PrefillStream(PageServer& server, RunId id) : server_(server), id_(id), writes_(*this) {}
  // Starts reading; `self` keeps it alive until OnDone.
  void Begin(std::shared_ptr<PrefillStream> self);

  RunId id() const { return id_; }
  // Thread-safe; both are harmless once the stream is over.
  void Send(v1::PrefillEvent event) { writes_.Send(std::move(event)); }
  void End(grpc::Status status) { writes_.Finish(std::move(status)); }
  void Beat() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override { writes_.OnWriteDone(ok); }
  void OnCancel() override;
  void OnDone() override;

 private:
  PageServer& server_;
  const RunId id_;
  ServerWrites<PrefillStream, v1::PrefillEvent> writes_;
  std::shared_ptr<PrefillStream> self_;
  v1::PrefillRequest incoming_;
  bool opened_ = false;  // reads come one after the other
  v1::Attempt attempt_;  // written before the stream is handed to anyone else
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_PREFILL_STREAM_H_
