// What the holders of one API key have used of its limits.
#ifndef COFFERDAM_GATEWAY_KEY_USE_H_
#define COFFERDAM_GATEWAY_KEY_USE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "gateway/allowance.h"
#include "gateway/api_error.h"
#include "gateway/http_message.h"
#include "gateway/key_file.h"

namespace cofferdam::gateway {

// Thread-safe.
class KeyUse {
 public:
  using Time = std::chrono::steady_clock::time_point;

  KeyUse(const KeyLimits& limits, Time now);
  // What was used stays used.
  void SetLimits(const KeyLimits& limits, Time now);

  // Counts a request, of whatever path. Errors: 429 rate_limit_exceeded with the seconds until it would be let in.
  std::optional<ApiError> TakeRequest(Time now);

  // Takes `choices` of the concurrency and charges the prompt. Errors: 429 rate_limit_exceeded, and then nothing is taken;
  // 400 when there are more choices than the key may ever have. On success Finish(choices) must follow.
  std::optional<ApiError> Start(uint32_t choices, uint64_t prompt_tokens, Time now);
  void Finish(uint32_t choices);
  // Tokens of an answer, as they come.
  void Charge(uint64_t tokens, Time now);
  // A prompt that no worker took.
  void Refund(uint64_t prompt_tokens, Time now);

  // x-ratelimit-{limit,remaining,reset}-{requests,tokens}, as OpenAI sends them; without those that have no limit.
  HttpHeaders Headers(Time now);
  uint32_t running() const;

 private:
  mutable Mutex mutex_;
  Allowance requests_ CD_GUARDED_BY(mutex_);
  Allowance tokens_ CD_GUARDED_BY(mutex_);
  uint32_t concurrency_ CD_GUARDED_BY(mutex_);
  uint32_t running_ CD_GUARDED_BY(mutex_) = 0;
  // Without a limit of tokens there is nothing to charge, and no lock to wait for with every token.
  std::atomic<bool> tokens_limited_;
};

// A started request's part of its key's concurrency, given back with the object. Shares the KeyUse, which outlives a reload
// of the key file that way. Not thread-safe.
class KeyShare {
 public:
  KeyShare() = default;
  KeyShare(std::shared_ptr<KeyUse> use, uint32_t choices) : use_(std::move(use)), choices_(choices) {}
  KeyShare(KeyShare&& other) noexcept : use_(std::move(other.use_)), choices_(other.choices_) {}
  KeyShare& operator=(KeyShare&& other) noexcept {
    std::swap(use_, other.use_);
    std::swap(choices_, other.choices_);
    return *this;
  }
  ~KeyShare() {
    if (use_ != nullptr) use_->Finish(choices_);
  }

 private:
  std::shared_ptr<KeyUse> use_;
  uint32_t choices_ = 0;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_KEY_USE_H_
