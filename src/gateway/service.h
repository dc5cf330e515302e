// What all connections of a gateway share.
#ifndef COFFERDAM_GATEWAY_SERVICE_H_
#define COFFERDAM_GATEWAY_SERVICE_H_

#include <sodium.h>

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "gateway/generate_call.h"
#include "gateway/key_ring.h"
#include "gateway/metrics.h"
#include "gateway/options.h"
#include "gateway/retry_budget.h"
#include "gateway/workers.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace cofferdam::gateway {

// Attempts of this process: a random boot id and a counter that never repeats. Thread-safe.
class AttemptSource {
 public:
  AttemptSource() { randombytes_buf(&boot_id_, sizeof boot_id_); }
  v1::Attempt Next() {
    v1::Attempt attempt;
    attempt.set_boot_id(boot_id_);
    attempt.set_counter(counter_.fetch_add(1) + 1);
    return attempt;
  }

 private:
  uint64_t boot_id_ = 0;
  std::atomic<uint64_t> counter_{0};
};

// A bounded number of something that many hold shares of. Thread-safe; a share gives back when it dies.
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

// Longer bodies are parsed and tokenized on the text pool.
inline constexpr size_t kInlineBodyBytes = 64 << 10;

struct Service {
  Service(GatewayOptions given, std::unique_ptr<const text::Tokenizer> vocabulary,
          std::unique_ptr<const text::ChatTemplate> chat_template, const std::string& model_hash)
      : options(std::move(given)),
        tokenizer(std::move(vocabulary)),
        chat(std::move(chat_template)),
        keys(options.api_keys),
        workers(options, model_hash),
        body_bytes(options.max_total_body_bytes),
        in_flight(options.max_in_flight),
        queue(options.max_queue) {
    options.api_keys.clear();  // from here on there are only hashes
  }

  GatewayOptions options;
  std::unique_ptr<const text::Tokenizer> tokenizer;
  std::unique_ptr<const text::ChatTemplate> chat;
  KeyRing keys;
  Metrics metrics;
  Workers workers;
  RetryBudget retries;
  AttemptSource attempts;
  std::shared_ptr<LiveCalls> calls = std::make_shared<LiveCalls>();
  Quota body_bytes;
  Quota in_flight;
  Quota queue;
  std::atomic<bool> stopping{false};
  int64_t created = 0;  // seconds since 1970, of the start
  // Long prompts are tokenized here, so that they do not hold up everybody's streams.
  boost::asio::thread_pool text_pool{1};
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_SERVICE_H_
