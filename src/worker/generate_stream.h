// One Decode.Generate stream on the server's side.
#ifndef COFFERDAM_WORKER_GENERATE_STREAM_H_
#define COFFERDAM_WORKER_GENERATE_STREAM_H_

#include <memory>
#include <utility>

#include "cofferdam.grpc.pb.h"
#include "worker/decode_worker.h"
#include "worker/write_queue.h"

namespace cofferdam::worker {

// Lives until gRPC is done with it and nobody else holds it. Its queue of writes is bounded by the request's max_tokens.
class GenerateStream final : public grpc::ServerWriteReactor<v1::GenerateEvent> {
 public:
  GenerateStream(DecodeWorker& worker, RequestId id) : worker_(worker), id_(id), writes_(*this) {}
  void Begin(std::shared_ptr<GenerateStream> self) { self_ = std::move(self); }

  RequestId id() const { return id_; }
  // Thread-safe; both are harmless once the stream is over.
  void Send(v1::GenerateEvent event) { writes_.Send(std::move(event)); }
  void End(grpc::Status status) { writes_.Finish(std::move(status)); }

  void OnWriteDone(bool ok) override { writes_.OnWriteDone(ok); }
  void OnCancel() override {
    worker_.loop().Post([&worker = worker_, id = id_] { worker.OnCancelled(id); });
  }
  void OnDone() override { self_.reset(); }

 private:
  DecodeWorker& worker_;
  const RequestId id_;
  ServerWrites<GenerateStream, v1::GenerateEvent> writes_;
  std::shared_ptr<GenerateStream> self_;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_GENERATE_STREAM_H_
