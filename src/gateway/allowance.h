// So much a minute.
#ifndef COFFERDAM_GATEWAY_ALLOWANCE_H_
#define COFFERDAM_GATEWAY_ALLOWANCE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace cofferdam::gateway {

// A token bucket that holds one minute's amount and is full at first. Not thread-safe. `now` must not go backwards.
class Allowance {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  Allowance(uint64_t per_minute, Time now) : limit_(static_cast<double>(per_minute)), left_(limit_), filled_(now) {}

  // Another limit; what was used stays used.
  void SetLimit(uint64_t per_minute, Time now) {
    Fill(now);
    left_ += static_cast<double>(per_minute) - limit_;
    limit_ = static_cast<double>(per_minute);
    left_ = std::min(left_, limit_);
  }

  bool limited() const { return limit_ > 0; }
  uint64_t limit() const { return static_cast<uint64_t>(limit_); }

  // How long until Charge(amount) is due; 0: now. What is more than a minute's amount is due when the bucket is full.
  Duration WaitFor(uint64_t amount, Time now) {
    Fill(now);
    if (!limited()) return Duration::zero();
    return Until(std::min(static_cast<double>(amount), limit_));
  }
  // Takes it, due or not: what an answer costs is known when it is there. What is owed is waited for by those who follow.
  void Charge(uint64_t amount, Time now) {
    Fill(now);
    if (limited()) left_ -= static_cast<double>(amount);
  }
  void Refund(uint64_t amount, Time now) {
    Fill(now);
    left_ = std::min(left_ + static_cast<double>(amount), limit_);
  }
  uint64_t left(Time now) {
    Fill(now);
    return left_ <= 0 ? 0 : static_cast<uint64_t>(left_);
  }
  Duration UntilFull(Time now) {
    Fill(now);
    return limited() ? Until(limit_) : Duration::zero();
  }

 private:
  static constexpr double kSeconds = 60;

  void Fill(Time now) {
    if (now <= filled_) return;
    left_ = std::min(limit_, left_ + limit_ / kSeconds * std::chrono::duration<double>(now - filled_).count());
    filled_ = now;
  }
  Duration Until(double amount) const {
    if (left_ >= amount) return Duration::zero();
    // One tick more, so that rounding cannot leave a crumb to wait for.
    const std::chrono::duration<double> wait((amount - left_) / limit_ * kSeconds);
    return std::chrono::duration_cast<Duration>(std::min(wait, kLongest)) + Duration(1);
  }
  static constexpr std::chrono::duration<double> kLongest{86400 * 365.0};

  double limit_;
  double left_;
  Time filled_;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_ALLOWANCE_H_
