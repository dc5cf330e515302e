// One Decode.Generate stream, brought from gRPC's threads to a connection's strand.
#ifndef COFFERDAM_GATEWAY_GENERATE_CALL_H_
#define COFFERDAM_GATEWAY_GENERATE_CALL_H_

#include <cofferdam.grpc.pb.h>
#include <grpcpp/grpcpp.h>

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "base/mutex.h"

namespace cofferdam::gateway {

// Counts calls that gRPC still holds, so that the gateway's end can wait for them. Thread-safe.
class LiveCalls {
 public:
  void Add();
  void Remove();
  size_t count() const;
  // Returns false when some are left after `longest`.
  bool WaitUntilNone(std::chrono::milliseconds longest);

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  size_t count_ CD_GUARDED_BY(mutex_) = 0;
};

// Threads: gRPC's threads put events into a bounded queue and stop reading from the network while it is full, so that a
// slow client holds back its worker and not our memory. Pop, ended, status, Cancel and Detach are for the strand.
// Lifetime: gRPC keeps the call alive until OnDone, however early its owner lets go.
class GenerateCall final : public grpc::ClientReadReactor<v1::GenerateEvent>, public std::enable_shared_from_this<GenerateCall> {
 public:
  struct Settings {
    boost::asio::any_io_executor strand;
    std::chrono::milliseconds deadline{};
    std::shared_ptr<LiveCalls> live;
    std::function<void()> notify;  // called on the strand when there may be something to pop
  };

  // `stub` must outlive the call's start only.
  static std::shared_ptr<GenerateCall> Start(v1::Decode::Stub& stub, v1::GenerateRequest request, Settings settings);
  ~GenerateCall() override;

  std::optional<v1::GenerateEvent> Pop();
  // Every event was popped and the status has come.
  bool ended() const;
  // REQUIRES: ended().
  grpc::Status status() const;
  // Aborts the call at once. Events that come after it are dropped.
  void Cancel();
  // No more notifications.
  void Detach() { settings_.notify = nullptr; }
  // Events that wait for the strand, at most.
  static constexpr size_t kMaxQueued = 64;

 private:
  GenerateCall(v1::GenerateRequest request, Settings settings);
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void Notify() CD_REQUIRES(mutex_);

  Settings settings_;
  const v1::GenerateRequest request_;
  grpc::ClientContext context_;
  v1::GenerateEvent incoming_;  // gRPC's while a read is outstanding
  std::shared_ptr<GenerateCall> self_;

  mutable Mutex mutex_;
  std::deque<v1::GenerateEvent> queue_ CD_GUARDED_BY(mutex_);
  bool paused_ CD_GUARDED_BY(mutex_) = false;  // no read is outstanding; the next Pop that makes room starts one
  bool cancelled_ CD_GUARDED_BY(mutex_) = false;
  bool done_ CD_GUARDED_BY(mutex_) = false;
  bool notified_ CD_GUARDED_BY(mutex_) = false;  // a notification is on its way
  grpc::Status status_ CD_GUARDED_BY(mutex_);
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_GENERATE_CALL_H_
