// Heartbeats of all open streams of a worker, sent off the compute threads.
#ifndef COFFERDAM_WORKER_HEARTBEAT_H_
#define COFFERDAM_WORKER_HEARTBEAT_H_

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace cofferdam::worker {

class Beating {
 public:
  virtual ~Beating() = default;
  // Runs on the heartbeat's thread; must not wait for the engine.
  virtual void Beat() = 0;
};

// Thread-safe. Streams that are gone are forgotten.
class Heartbeats {
 public:
  explicit Heartbeats(std::chrono::milliseconds every) : every_(every), thread_([this] { Main(); }) {}
  ~Heartbeats() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }
  void Add(std::weak_ptr<Beating> stream) {
    MutexLock lock(mutex_);
    streams_.push_back(std::move(stream));
  }

 private:
  void Main() {
    while (true) {
      std::vector<std::shared_ptr<Beating>> live;
      {
        MutexLock lock(mutex_);
        if (!stopping_) changed_.WaitFor(mutex_, every_);
        if (stopping_) return;
        std::erase_if(streams_, [](const std::weak_ptr<Beating>& stream) { return stream.expired(); });
        for (const std::weak_ptr<Beating>& stream : streams_) live.push_back(stream.lock());
      }
      for (const std::shared_ptr<Beating>& stream : live) {
        if (stream != nullptr) stream->Beat();
      }
    }
  }

  const std::chrono::milliseconds every_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::weak_ptr<Beating>> streams_ CD_GUARDED_BY(mutex_);
  bool stopping_ CD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_HEARTBEAT_H_
