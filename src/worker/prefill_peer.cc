#include "worker/prefill_peer.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "worker/grpc_limits.h"

namespace cofferdam::worker {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kAskEvery{250}, kAnswerWithin{2000}, kConnectWithin{2000};

}  // namespace

PrefillPeer::PrefillPeer(std::string address, const kv::Layout& layout, size_t window_bytes, handoff::TransferWindow* all_peers)
    : address_(std::move(address)),
      layout_(layout),
      window_(window_bytes, all_peers),
      stub_(v1::Prefill::NewStub(grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), ChannelLimits()))),
      thread_([this] { Main(); }) {}

PrefillPeer::~PrefillPeer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    if (asking_ != nullptr) asking_->TryCancel();
  }
  thread_.join();
}

PrefillPeer::State PrefillPeer::state() const {
  MutexLock lock(mutex_);
  State state = state_;
  // The fabric notices a dead peer before the next question does.
  if (state.ready && !state.reader->alive()) {
    state.ready = false;
    state.why_not = "its fabric connection is gone";
  }
  return state;
}

void PrefillPeer::SetDown(std::string why) {
  MutexLock lock(mutex_);
  if (state_.why_not != why) log::warn("worker {} is not used: {}", address_, why);
  state_.ready = false;
  state_.why_not = std::move(why);
}

void PrefillPeer::Refresh() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kAnswerWithin);
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    asking_ = &context;
    // A connection comes up only while a call waits for it; a worker that was up and is gone must be seen at once.
    context.set_wait_for_ready(!state_.ready);
  }
  v1::WorkerInfo info;
  const grpc::Status status = stub_->Info(&context, {}, &info);
  {
    MutexLock lock(mutex_);
    asking_ = nullptr;
  }
  if (!status.ok()) return SetDown("it does not answer");
  if (info.layout().layout_id() != std::string_view(reinterpret_cast<const char*>(layout_.id().data()), layout_.id().size())) {
    return SetDown(absl::StrCat("its page layout is {", info.layout().description(), "}, ours is {", layout_.Describe(), "}"));
  }
  if (!info.ready()) return SetDown(info.not_ready_reason());
  std::shared_ptr<fabric::Reader> reader;
  {
    MutexLock lock(mutex_);
    reader = state_.reader;
  }
  if (reader == nullptr || !reader->alive() || reader->region().region != info.boot_id()) {
    auto connected = fabric::Connect(info.fabric_address(), layout_.id(), kConnectWithin);
    if (!connected.ok()) return SetDown(std::string(connected.status().message()));
    reader = *std::move(connected);
    log::info("worker {} is connected: {} tokens of KV, context {}", address_, info.kv_tokens(), info.context_tokens());
  }
  MutexLock lock(mutex_);
  // `reader` keeps the old one, if any, so that it is not destroyed (which waits for its thread) under the lock.
  state_.reader.swap(reader);
  state_.ready = true;
  state_.why_not.clear();
  state_.info = std::move(info);
}

void PrefillPeer::Main() {
  while (true) {
    Refresh();
    MutexLock lock(mutex_);
    if (!stopping_) changed_.WaitFor(mutex_, kAskEvery);
    if (stopping_) return;
  }
}

}  // namespace cofferdam::worker
