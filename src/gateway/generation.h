// One client request at the workers: attempts, retries and resumption after a worker's death.
#ifndef COFFERDAM_GATEWAY_GENERATION_H_
#define COFFERDAM_GATEWAY_GENERATION_H_

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "gateway/api_error.h"
#include "gateway/generate_call.h"
#include "gateway/logprobs.h"
#include "gateway/service.h"
#include "gateway/verified_pages.h"
#include "gateway/wake.h"

namespace cofferdam::gateway {

// I8: only events of the current attempt, and of its next token index, have an effect; others are counted and dropped.
// I5 at this boundary: a stream that ends without Finished has failed whatever its status, and a worker that accepted
// another prompt length than was sent is not listened to.
// A failed stream is tried again, at another worker if there is one, while the shared budget lasts: from the start
// before the first token, from the tokens so far after it.
// Not thread-safe: everything happens on `strand`.
class Generation {
 public:
  enum class Kind { kAccepted, kToken, kFinished, kFailed, kCancelled };
  struct Event {
    Kind kind = Kind::kFailed;
    TokenLogprobs token;                                  // kToken
    v1::Finished::Reason reason = v1::Finished::UNKNOWN;  // kFinished
    ApiError error;                                       // kFailed
  };

  struct Setting {
    boost::asio::any_io_executor strand;
    Wake* wake = nullptr;          // set when there may be an event; must outlive this
    const Worker* home = nullptr;  // goes there first, while requests may
  };
  // `request` lacks only the attempt. `service` must outlive this.
  Generation(Service& service, Setting setting, v1::GenerateRequest request);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // The next event if it is there: one kAccepted, then tokens, then one of the others, after which it must not be called
  // again. When there is none, the caller waits for the wake, and calls again after LongestSleep at the latest.
  std::optional<Event> TryNext();
  std::chrono::steady_clock::duration LongestSleep() const;
  // The client is gone, or has seen enough: the stream is aborted at once, and TryNext returns kCancelled.
  void Cancel();

  // What the attempts so far have told: pages with kAccepted, checks with kFinished. A worker that died, or was stopped
  // early, told nothing of its checks.
  const VerifiedPages& verified() const { return verified_; }
  // Of the prompt: found in a prefix cache by the attempt that was accepted first, what the client waited for.
  uint64_t cached_tokens() const { return cached_tokens_; }
  const std::vector<TokenId>& tokens() const { return received_; }
  uint64_t last_attempt() const { return attempt_.counter(); }
  // Where the last attempt went; null before the first. To be compared, never followed.
  const Worker* last_worker() const { return last_worker_; }

 private:
  std::optional<Event> Launch();
  v1::GenerateRequest AttemptRequest() const;
  std::optional<Event> Handle(const v1::GenerateEvent& event);
  std::optional<Event> OnAccepted(const v1::Accepted& accepted);
  std::optional<Event> OnToken(const v1::Token& token);
  // False: those that were asked for are not all there.
  bool TakeTop(const v1::Token& token, TokenLogprobs& taken) const;
  std::optional<Event> OnFinished(const v1::Finished& finished);
  // The stream is over without Finished. None when a retry was scheduled.
  std::optional<Event> OnFailure(grpc::Status status);
  bool MayRetry(const grpc::Status& status);
  // The worker died between the last token and Finished.
  std::optional<Event> FinishedByItself() const;
  Event Fail(ApiError error);
  void DropCall();

  Service& service_;
  const Setting setting_;
  v1::GenerateRequest request_;
  std::shared_ptr<GenerateCall> call_;
  Lease lease_;
  const Worker* failed_on_ = nullptr;  // compared, never followed
  const Worker* last_worker_ = nullptr;
  v1::Attempt attempt_;
  bool attempt_accepted_ = false;
  size_t resumed_from_ = 0;  // tokens that were there when the attempt began
  bool accepted_ = false;    // by any attempt; the client was told
  bool cancelled_ = false;
  int retries_ = 0;
  uint64_t cached_tokens_ = 0;
  VerifiedPages verified_;
  std::chrono::steady_clock::time_point launch_at_{};
  std::vector<TokenId> received_;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_GENERATION_H_
