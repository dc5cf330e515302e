// Virtual time: what happens, in order. Nothing else in a simulation knows the time.
#ifndef COFFERDAM_SIM_CLOCK_H_
#define COFFERDAM_SIM_CLOCK_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "handoff/types.h"

namespace cofferdam::sim {

using handoff::Duration;
using handoff::Time;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// One thread. Events of one moment happen in the order in which they were scheduled.
class Agenda {
 public:
  using Action = std::function<void()>;

  void At(Time time, Action action) {
    events_.push_back({.time = time, .order = next_++, .action = std::move(action)});
    std::push_heap(events_.begin(), events_.end(), Later);
  }
  bool empty() const { return events_.empty(); }
  Time next() const { return events_.front().time; }
  Action TakeNext() {
    std::pop_heap(events_.begin(), events_.end(), Later);
    Action action = std::move(events_.back().action);
    events_.pop_back();
    return action;
  }

 private:
  struct Event {
    Time time;
    uint64_t order = 0;
    Action action;
  };
  static bool Later(const Event& a, const Event& b) { return a.time != b.time ? a.time > b.time : a.order > b.order; }

  std::vector<Event> events_;
  uint64_t next_ = 0;
};

// Two agendas with one time: what happens to memory happens also in the middle of a step.
class Clock {
 public:
  Time now() const { return now_; }
  // At a past time: now.
  void At(Time time, Agenda::Action action) { all_.At(std::max(time, now_), std::move(action)); }
  void After(Duration delay, Agenda::Action action) { At(now_ + delay, std::move(action)); }
  // Touches memory alone, and may happen a little early: while a step that ends later is under way.
  void MemoryAt(Time time, Agenda::Action action) { memory_.At(std::max(time, now_), std::move(action)); }

  // False when nothing is left.
  bool RunNext() {
    if (all_.empty() && memory_.empty()) return false;
    const bool memory = !memory_.empty() && (all_.empty() || memory_.next() <= all_.next());
    Agenda& agenda = memory ? memory_ : all_;
    now_ = std::max(now_, agenda.next());
    ++events_;
    agenda.TakeNext()();
    return true;
  }
  // What happens to memory until then.
  void RunMemory(Time until) {
    while (!memory_.empty() && memory_.next() <= until) {
      ++events_;
      memory_.TakeNext()();
    }
  }
  uint64_t events() const { return events_; }

 private:
  Time now_{};
  Agenda all_, memory_;
  uint64_t events_ = 0;
};

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_CLOCK_H_
