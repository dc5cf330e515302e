#include "worker/engine_loop.h"

#include <algorithm>
#include <utility>

namespace cofferdam::worker {
namespace {

// The longest that clocks and queues wait while nothing happens.
constexpr auto kIdleTurn = std::chrono::milliseconds(50);
constexpr std::chrono::microseconds kLongestScrubDebt = std::chrono::seconds(1);

}  // namespace

void EngineLoop::Start() {
  thread_ = std::thread([this] { Main(); });
}

void EngineLoop::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void EngineLoop::Post(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.NotifyOne();
}

std::deque<std::function<void()>> EngineLoop::Take(bool wait) {
  MutexLock lock(mutex_);
  if (wait && tasks_.empty() && !stopping_) changed_.WaitFor(mutex_, kIdleTurn);
  return std::exchange(tasks_, {});
}

void EngineLoop::Scrub(std::vector<engine::Event>& events) {
  if (scrub_bytes_per_second_ == 0) return;
  const Clock::time_point now = Clock::now();
  // What a long step or a sleep left undone is not made up for: it would hold up the next step.
  const auto since = std::min(std::chrono::duration_cast<std::chrono::microseconds>(now - scrubbed_), kLongestScrubDebt);
  const uint64_t due = scrub_bytes_per_second_ * static_cast<uint64_t>(since.count()) / 1'000'000;
  const size_t page = engine_.pool().layout().payload_bytes();
  if (due < page && since < kLongestScrubDebt) return;
  scrubbed_ = now;
  engine_.Scrub(std::max<size_t>(due, page), events);
}

void EngineLoop::Main() {
  std::vector<engine::Event> events;
  bool quiet = false;  // the last round did nothing; what a busy one changed has been published since
  while (true) {
    const std::deque<std::function<void()>> tasks = Take(quiet && (!engine_.HasWork() || engine_.Stalled()));
    for (const std::function<void()>& task : tasks) task();
    client_.OnTurn(Clock::now());
    engine_.Reclaim();
    events.clear();
    engine_.Step(events);
    Scrub(events);
    if (!events.empty()) client_.OnEvents(events);
    quiet = tasks.empty() && events.empty();
    MutexLock lock(mutex_);
    if (stopping_ && tasks_.empty()) return;
  }
}

}  // namespace cofferdam::worker
