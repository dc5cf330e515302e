// The one thread that owns an engine, its pool and every page table. Everything else posts to it.
#ifndef COFFERDAM_WORKER_ENGINE_LOOP_H_
#define COFFERDAM_WORKER_ENGINE_LOOP_H_

#include <chrono>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "engine/engine.h"

namespace cofferdam::worker {

using Clock = std::chrono::steady_clock;

// What a role does on the engine's thread.
class LoopClient {
 public:
  virtual ~LoopClient() = default;
  // What a step brought. Runs on the engine's thread.
  virtual void OnEvents(const std::vector<engine::Event>& events) = 0;
  // Every turn, with or without work: queues, clocks, metrics.
  virtual void OnTurn(Clock::time_point now) = 0;
};

class EngineLoop {
 public:
  // `engine` is not owned; `client` neither. Both outlive Stop.
  // `scrub_bytes_per_second`: how fast sealed pages are checked again while they lie there; 0: not at all.
  EngineLoop(engine::Engine& engine, LoopClient& client, uint64_t scrub_bytes_per_second)
      : engine_(engine), client_(client), scrub_bytes_per_second_(scrub_bytes_per_second) {}
  ~EngineLoop() { Stop(); }

  void Start();
  // Runs what was posted, then ends the thread. Idempotent; not from the loop's own thread.
  void Stop();

  // Thread-safe. Tasks run in the order in which they were posted; after Stop they are dropped. The tasks' number is
  // bounded by what produces them: streams (limited) with one message each in flight, and reads (the transfer window).
  void Post(std::function<void()> task);

 private:
  void Main();
  void Scrub(std::vector<engine::Event>& events);
  std::deque<std::function<void()>> Take(bool wait);

  engine::Engine& engine_;
  LoopClient& client_;
  const uint64_t scrub_bytes_per_second_;
  Clock::time_point scrubbed_ = Clock::now();
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ CD_GUARDED_BY(mutex_);
  bool stopping_ CD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_ENGINE_LOOP_H_
