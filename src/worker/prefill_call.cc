#include "worker/prefill_call.h"

#include <utility>

#include "worker/grpc_status.h"

namespace cofferdam::worker {

std::shared_ptr<PrefillCall> PrefillCall::Start(v1::Prefill::Stub& stub, v1::PrefillRequest open, Callbacks callbacks) {
  auto call = std::shared_ptr<PrefillCall>(new PrefillCall(std::move(open), std::move(callbacks)));
  MutexLock lock(call->mutex_);
  call->self_ = call;
  call->attempt_ = call->outgoing_.attempt();
  stub.async()->Run(&call->context_, call.get());
  call->AddHold();  // heartbeats are written from outside of reactions; Close lets go
  call->StartWrite(&call->outgoing_);
  call->StartRead(&call->incoming_);
  call->StartCall();
  return call;
}

void PrefillCall::Close() {
  context_.TryCancel();
  LetGo();
}

void PrefillCall::LetGo() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  RemoveHold();
}

void PrefillCall::Beat() {
  MutexLock lock(mutex_);
  if (closed_ || writing_) return;
  writing_ = true;
  outgoing_.Clear();
  *outgoing_.mutable_attempt() = attempt_;
  outgoing_.set_covered_pages(covered_.load(std::memory_order_relaxed));
  StartWrite(&outgoing_);
}

void PrefillCall::OnWriteDone(bool) {
  MutexLock lock(mutex_);
  writing_ = false;
}

void PrefillCall::OnReadDone(bool ok) {
  if (!ok) {
    // The peer has ended the stream, or it broke: without our hold its status comes. A cancel here could hide it.
    LetGo();
    return;
  }
  callbacks_.on_event(std::exchange(incoming_, {}));
  StartRead(&incoming_);
}

void PrefillCall::OnDone(const grpc::Status& status) {
  callbacks_.on_ended(FromGrpc(status));
  self_.reset();
}

}  // namespace cofferdam::worker
