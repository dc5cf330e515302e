#include "gateway/generate_call.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "base/check.h"

namespace cofferdam::gateway {

void LiveCalls::Add() {
  const MutexLock lock(mutex_);
  ++count_;
}

void LiveCalls::Remove() {
  {
    const MutexLock lock(mutex_);
    CD_CHECK(count_ > 0, "a call ends once");
    --count_;
  }
  changed_.NotifyAll();
}

size_t LiveCalls::count() const {
  const MutexLock lock(mutex_);
  return count_;
}

bool LiveCalls::WaitUntilNone(std::chrono::milliseconds longest) {
  const auto end = std::chrono::steady_clock::now() + longest;
  const MutexLock lock(mutex_);
  while (count_ > 0) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= end) return false;
    changed_.WaitFor(mutex_, end - now);
  }
  return true;
}

std::shared_ptr<GenerateCall> GenerateCall::Start(v1::Decode::Stub& stub, v1::GenerateRequest request, Settings settings) {
  std::shared_ptr<GenerateCall> call(new GenerateCall(std::move(request), std::move(settings)));
  call->self_ = call;
  call->settings_.live->Add();
  call->context_.set_deadline(std::chrono::system_clock::now() + call->settings_.deadline);
  stub.async()->Generate(&call->context_, &call->request_, call.get());
  // Reads that are started from the strand, after a pause, need a hold: it ends with the last read.
  call->AddHold();
  call->StartRead(&call->incoming_);
  call->StartCall();
  return call;
}

GenerateCall::GenerateCall(v1::GenerateRequest request, Settings settings)
    : settings_(std::move(settings)), request_(std::move(request)) {}

GenerateCall::~GenerateCall() = default;

void GenerateCall::Notify() {
  if (std::exchange(notified_, true)) return;
  boost::asio::post(settings_.strand, [self = shared_from_this()] {
    {
      const MutexLock lock(self->mutex_);
      self->notified_ = false;
    }
    if (self->settings_.notify) self->settings_.notify();
  });
}

void GenerateCall::OnReadDone(bool ok) {
  if (!ok) {
    RemoveHold();
    return;
  }
  {
    const MutexLock lock(mutex_);
    if (!cancelled_) {
      queue_.push_back(std::move(incoming_));
      CD_CHECK(queue_.size() <= kMaxQueued, "a full queue starts no read");
      paused_ = queue_.size() == kMaxQueued;
      Notify();
      if (paused_) return;
    }
  }
  StartRead(&incoming_);
}

void GenerateCall::OnDone(const grpc::Status& status) {
  std::shared_ptr<GenerateCall> self = std::move(self_);  // it may be the last owner
  const std::shared_ptr<LiveCalls> live = settings_.live;
  {
    const MutexLock lock(mutex_);
    status_ = status;
    done_ = true;
    Notify();
  }
  // Before the count: who sees no call left frees what our strand points into.
  self.reset();
  live->Remove();
}

std::optional<v1::GenerateEvent> GenerateCall::Pop() {
  std::optional<v1::GenerateEvent> event;
  bool resume = false;
  {
    const MutexLock lock(mutex_);
    if (queue_.empty()) return std::nullopt;
    event = std::move(queue_.front());
    queue_.pop_front();
    if (paused_ && queue_.size() <= kMaxQueued / 2) {
      paused_ = false;
      resume = true;
    }
  }
  if (resume) StartRead(&incoming_);
  return event;
}

bool GenerateCall::ended() const {
  const MutexLock lock(mutex_);
  return done_ && queue_.empty();
}

grpc::Status GenerateCall::status() const {
  const MutexLock lock(mutex_);
  CD_CHECK(done_, "the status is known once the call has ended");
  return status_;
}

void GenerateCall::Cancel() {
  bool resume = false;
  {
    const MutexLock lock(mutex_);
    if (std::exchange(cancelled_, true)) return;
    queue_.clear();
    resume = std::exchange(paused_, false);
  }
  context_.TryCancel();
  if (resume) StartRead(&incoming_);  // it fails, and lets the call end
}

}  // namespace cofferdam::gateway
