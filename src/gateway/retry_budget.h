// One budget for the retries of all requests, so that a false alarm cannot start a storm.
#ifndef COFFERDAM_GATEWAY_RETRY_BUDGET_H_
#define COFFERDAM_GATEWAY_RETRY_BUDGET_H_

#include <array>
#include <chrono>
#include <cstdint>

#include "base/mutex.h"

namespace cofferdam::gateway {

// Retries of the last ten seconds are at most a fifth of the requests of that time, or ten. Thread-safe.
class RetryBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr uint64_t kLeast = 10;
  static constexpr uint64_t kShare = 5;  // one retry for so many requests

  void CountRequest(Time now) {
    const MutexLock lock(mutex_);
    ++At(now).requests;
  }

  // Returns whether one more is allowed, and counts it if so.
  bool TryRetry(Time now) {
    const MutexLock lock(mutex_);
    Second& current = At(now);
    uint64_t requests = 0;
    uint64_t retries = 0;
    for (const Second& second : seconds_) {
      if (current.number - second.number >= static_cast<int64_t>(seconds_.size())) continue;
      requests += second.requests;
      retries += second.retries;
    }
    const uint64_t allowed = requests / kShare > kLeast ? requests / kShare : kLeast;
    if (retries >= allowed) return false;
    ++current.retries;
    return true;
  }

 private:
  struct Second {
    int64_t number = -1000;
    uint64_t requests = 0;
    uint64_t retries = 0;
  };

  Second& At(Time now) CD_REQUIRES(mutex_) {
    const int64_t number = std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
    Second& second = seconds_[static_cast<size_t>(number) % seconds_.size()];
    if (second.number != number) {
      second = Second();
      second.number = number;
    }
    return second;
  }

  Mutex mutex_;
  std::array<Second, 10> seconds_ CD_GUARDED_BY(mutex_);
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_RETRY_BUDGET_H_
