#include "worker/prefill_stream.h"

#include <utility>

namespace cofferdam::worker {

void PrefillStream::Begin(std::shared_ptr<PrefillStream> self) {
  self_ = std::move(self);
  StartRead(&incoming_);
}

void PrefillStream::OnReadDone(bool ok) {
  if (!ok) {
    // Decode closed its half or is gone: either ends the relation.
    server_.loop().Post([&server = server_, id = id_] { server.OnClosed(id); });
    End(grpc::Status::CANCELLED);
    return;
  }
  if (!opened_) {
    opened_ = true;
    attempt_ = incoming_.attempt();
    server_.loop().Post([&server = server_, self = self_, request = std::move(incoming_)]() mutable {
      server.OnOpen(std::move(self), std::move(request));
    });
  } else {
    server_.loop().Post(
        [&server = server_, id = id_, covered = incoming_.covered_pages()] { server.OnPeerHeartbeat(id, covered); });
  }
  incoming_.Clear();
  StartRead(&incoming_);
}

void PrefillStream::OnCancel() {
  server_.loop().Post([&server = server_, id = id_] { server.OnClosed(id); });
  End(grpc::Status::CANCELLED);
}

void PrefillStream::OnDone() {
  server_.loop().Post([&server = server_, id = id_] { server.OnClosed(id); });
  self_.reset();
}

void PrefillStream::Beat() {
  v1::PrefillEvent event;
  *event.mutable_attempt() = attempt_;
  event.mutable_heartbeat()->set_steps(server_.steps());
  writes_.SendIfIdle(std::move(event));
}

}  // namespace cofferdam::worker
