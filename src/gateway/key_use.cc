#include "gateway/key_use.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error.h"

namespace cofferdam::gateway {
namespace {

uint32_t WholeSeconds(Allowance::Duration wait) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(wait).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(seconds, 1, 86400));
}

ApiError TooMany(std::string what, uint32_t retry_after_s) {
  ApiError error = HttpError(429, std::move(what), std::string(error_code::kRateLimit));
  error.retry_after_s = retry_after_s;
  return error;
}

// Seconds with three digits: "0.250s".
std::string Reset(Allowance::Duration wait) {
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  return absl::StrCat(milliseconds / 1000, ".", absl::Dec(milliseconds % 1000, absl::kZeroPad3), "s");
}

void AppendHeaders(const std::string& what, Allowance& allowance, Allowance::Time now, HttpHeaders& headers) {
  if (!allowance.limited()) return;
  headers.emplace_back("x-ratelimit-limit-" + what, absl::StrCat(allowance.limit()));
  headers.emplace_back("x-ratelimit-remaining-" + what, absl::StrCat(allowance.left(now)));
  headers.emplace_back("x-ratelimit-reset-" + what, Reset(allowance.UntilFull(now)));
}

}  // namespace

KeyUse::KeyUse(const KeyLimits& limits, Time now)
    : requests_(limits.requests_per_minute, now),
      tokens_(limits.tokens_per_minute, now),
      concurrency_(limits.concurrency),
      tokens_limited_(limits.tokens_per_minute > 0) {}

void KeyUse::SetLimits(const KeyLimits& limits, Time now) {
  const MutexLock lock(mutex_);
  requests_.SetLimit(limits.requests_per_minute, now);
  tokens_.SetLimit(limits.tokens_per_minute, now);
  concurrency_ = limits.concurrency;
  tokens_limited_ = limits.tokens_per_minute > 0;
}

std::optional<ApiError> KeyUse::TakeRequest(Time now) {
  const MutexLock lock(mutex_);
  const Allowance::Duration wait = requests_.WaitFor(1, now);
  if (wait > Allowance::Duration::zero()) {
    return TooMany(
        absl::StrCat("This API key may send ", requests_.limit(), " requests a minute. Try again in ", WholeSeconds(wait), " s."),
        WholeSeconds(wait));
  }
  requests_.Charge(1, now);
  return std::nullopt;
}

std::optional<ApiError> KeyUse::Start(uint32_t choices, uint64_t prompt_tokens, Time now) {
  const MutexLock lock(mutex_);
  if (concurrency_ > 0 && choices > concurrency_) {
    return InvalidRequest(
        absl::StrCat("'n' is ", choices, ", but this API key may have ", concurrency_, " answers generated at a time."), "n");
  }
  if (concurrency_ > 0 && running_ + choices > concurrency_) {
    return TooMany(
        absl::StrCat("This API key may have ", concurrency_, " answers generated at a time. Try again when one has ended."), 1);
  }
  const Allowance::Duration wait = tokens_.WaitFor(prompt_tokens, now);
  if (wait > Allowance::Duration::zero()) {
    return TooMany(absl::StrCat("This API key may use ", tokens_.limit(), " tokens a minute. The request's prompt has ",
                                prompt_tokens, ". Try again in ", WholeSeconds(wait), " s."),
                   WholeSeconds(wait));
  }
  tokens_.Charge(prompt_tokens, now);
  running_ += choices;
  return std::nullopt;
}

void KeyUse::Finish(uint32_t choices) {
  const MutexLock lock(mutex_);
  CD_CHECK(running_ >= choices, "only what runs can end");
  running_ -= choices;
}

void KeyUse::Charge(uint64_t tokens, Time now) {
  if (tokens == 0 || !tokens_limited_) return;
  const MutexLock lock(mutex_);
  tokens_.Charge(tokens, now);
}

void KeyUse::Refund(uint64_t prompt_tokens, Time now) {
  const MutexLock lock(mutex_);
  tokens_.Refund(prompt_tokens, now);
}

HttpHeaders KeyUse::Headers(Time now) {
  HttpHeaders headers;
  const MutexLock lock(mutex_);
  AppendHeaders("requests", requests_, now, headers);
  AppendHeaders("tokens", tokens_, now, headers);
  return headers;
}

uint32_t KeyUse::running() const {
  const MutexLock lock(mutex_);
  return running_;
}

}  // namespace cofferdam::gateway
