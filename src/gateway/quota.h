// A bounded number of something that many hold shares of.
#ifndef COFFERDAM_GATEWAY_QUOTA_H_
#define COFFERDAM_GATEWAY_QUOTA_H_

#include <atomic>
#include <cstdint>
#include <utility>

namespace cofferdam::gateway {

// Thread-safe; a share gives back when it dies, and must not outlive its quota.
class Quota {
 public:
  explicit Quota(uint64_t limit) : limit_(limit) {}

  class Share {
   public:
    Share() = default;
    Share(Quota* quota, uint64_t amount) : quota_(quota), amount_(amount) {}
    Share(Share&& other) noexcept : quota_(std::exchange(other.quota_, nullptr)), amount_(other.amount_) {}
    Share& operator=(Share&& other) noexcept {
      if (this != &other) {
        Release();
        quota_ = std::exchange(other.quota_, nullptr);
        amount_ = other.amount_;
      }
      return *this;
    }
    ~Share() { Release(); }
    explicit operator bool() const { return quota_ != nullptr; }
    void Release() {
      if (quota_ != nullptr) quota_->used_ -= amount_;
      quota_ = nullptr;
    }

   private:
    Quota* quota_ = nullptr;
    uint64_t amount_ = 0;
  };

  // An empty share when it would go over the limit.
  Share Take(uint64_t amount) {
    uint64_t used = used_.load();
    do {
      if (amount > limit_ || used > limit_ - amount) return {};
    } while (!used_.compare_exchange_weak(used, used + amount));
    return {this, amount};
  }
  uint64_t used() const { return used_; }

 private:
  const uint64_t limit_;
  std::atomic<uint64_t> used_{0};
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_QUOTA_H_
