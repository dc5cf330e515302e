// Writes of one gRPC stream, in order, one at a time, from any thread.
#ifndef COFFERDAM_WORKER_WRITE_QUEUE_H_
#define COFFERDAM_WORKER_WRITE_QUEUE_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <optional>
#include <utility>

#include "base/mutex.h"

namespace cofferdam::worker {

// `Reactor` is a server reactor with StartWrite(const Message*) and Finish(Status). Thread-safe. The reactor calls
// OnWriteDone of its own; nothing is started after Finish, as gRPC demands.
template <typename Reactor, typename Message>
class ServerWrites {
 public:
  explicit ServerWrites(Reactor& reactor) : reactor_(reactor) {}

  // Dropped when the stream is finishing or broken.
  void Send(Message message) {
    MutexLock lock(mutex_);
    if (status_.has_value() || broken_) return;
    queue_.push_back(std::move(message));
    if (!writing_) StartNext();
  }

  // For heartbeats: a peer that does not read must not make them pile up.
  void SendIfIdle(Message message) {
    MutexLock lock(mutex_);
    if (status_.has_value() || broken_ || writing_) return;
    queue_.push_back(std::move(message));
    StartNext();
  }

  // Finishes after what was sent before; on a broken stream at once. Only the first call counts.
  void Finish(grpc::Status status) {
    MutexLock lock(mutex_);
    if (status_.has_value()) return;
    status_ = std::move(status);
    if (broken_) queue_.clear();
    if (!writing_) StartNext();
  }

  void OnWriteDone(bool ok) {
    MutexLock lock(mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) {
      broken_ = true;
      queue_.clear();
    }
    StartNext();
  }

 private:
  void StartNext() CD_REQUIRES(mutex_) {
    if (!queue_.empty()) {
      writing_ = true;
      reactor_.StartWrite(&queue_.front());
    } else if (status_.has_value() && !finished_) {
      finished_ = true;
      reactor_.Finish(*status_);
    }
  }

  Reactor& reactor_;
  Mutex mutex_;
  std::deque<Message> queue_ CD_GUARDED_BY(mutex_);
  std::optional<grpc::Status> status_ CD_GUARDED_BY(mutex_);
  bool writing_ CD_GUARDED_BY(mutex_) = false;
  bool broken_ CD_GUARDED_BY(mutex_) = false;
  bool finished_ CD_GUARDED_BY(mutex_) = false;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_WRITE_QUEUE_H_
