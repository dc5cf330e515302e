#include "gateway/generation.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace cofferdam::gateway {
namespace {

constexpr std::chrono::milliseconds kLookAtWorker{250};
constexpr std::chrono::milliseconds kFirstBackOff{50};

ApiError Integrity(std::string message) { return HttpError(500, std::move(message), std::string(error_code::kIntegrity)); }

ApiError Incomplete() { return HttpError(500, "A worker's answer is incomplete.", "incomplete_answer"); }

}  // namespace

Generation::Generation(Service& service, Setting setting, v1::GenerateRequest request)
    : service_(service), setting_(std::move(setting)), request_(std::move(request)) {
  CD_CHECK(setting_.wake != nullptr, "somebody waits for a generation");
  service_.retries.CountRequest(std::chrono::steady_clock::now());
}

Generation::~Generation() { DropCall(); }

void Generation::DropCall() {
  if (call_ != nullptr) {
    call_->Detach();
    call_->Cancel();
    call_.reset();
  }
  lease_ = Lease();
}

void Generation::Cancel() {
  cancelled_ = true;
  DropCall();
  setting_.wake->Set();
}

std::chrono::steady_clock::duration Generation::LongestSleep() const {
  if (call_ != nullptr) return kLookAtWorker;
  const std::chrono::steady_clock::duration left = launch_at_ - std::chrono::steady_clock::now();
  return std::max<std::chrono::steady_clock::duration>(left, std::chrono::milliseconds(1));
}

std::optional<Generation::Event> Generation::TryNext() {
  if (cancelled_) {
    Event event;
    event.kind = Kind::kCancelled;
    return event;
  }
  if (call_ == nullptr) {
    if (std::chrono::steady_clock::now() < launch_at_) return std::nullopt;
    return Launch();
  }
  while (call_ != nullptr) {
    if (const std::optional<v1::GenerateEvent> incoming = call_->Pop()) {
      lease_->Heard();
      if (std::optional<Event> event = Handle(*incoming)) return event;
    } else if (call_->ended()) {
      return OnFailure(call_->status());
    } else if (lease_->silent()) {
      // A stopped process keeps its connections open; only its silence tells.
      return OnFailure(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the worker has gone silent"));
    } else {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

v1::GenerateRequest Generation::AttemptRequest() const {
  v1::GenerateRequest request = request_;
  *request.mutable_attempt() = attempt_;
  request.mutable_tokens()->Add(received_.begin(), received_.end());
  const auto sent = static_cast<uint32_t>(received_.size());
  CD_CHECK(sent < request_.max_tokens(), "a full answer is not asked for again");
  request.set_max_tokens(request_.max_tokens() - sent);
  request.set_resumed_tokens(sent);
  return request;
}

std::optional<Generation::Event> Generation::Launch() {
  lease_ = service_.workers.Pick({.avoid = failed_on_, .home = setting_.home});
  if (!lease_) {
    return OnFailure(grpc::Status(grpc::StatusCode::UNAVAILABLE, ""));
  }
  last_worker_ = lease_.get();
  attempt_ = service_.attempts.Next();
  attempt_accepted_ = false;
  resumed_from_ = received_.size();
  GenerateCall::Settings settings;
  settings.strand = setting_.strand;
  settings.deadline = service_.options.request_timeout;
  settings.live = service_.calls;
  settings.notify = [wake = setting_.wake] { wake->Set(); };
  call_ = GenerateCall::Start(lease_->decode(), AttemptRequest(), std::move(settings));
  return std::nullopt;
}

std::optional<Generation::Event> Generation::Handle(const v1::GenerateEvent& event) {
  const bool current = event.attempt().boot_id() == attempt_.boot_id() && event.attempt().counter() == attempt_.counter();
  if (current) {
    switch (event.event_case()) {
      case v1::GenerateEvent::kAccepted:
        return OnAccepted(event.accepted());
      case v1::GenerateEvent::kToken:
        return OnToken(event.token());
      case v1::GenerateEvent::kFinished:
        return OnFinished(event.finished());
      case v1::GenerateEvent::EVENT_NOT_SET:
        break;
    }
  }
  ++service_.metrics.stale_messages_total;
  return std::nullopt;
}

std::optional<Generation::Event> Generation::OnAccepted(const v1::Accepted& accepted) {
  // Tokens of an earlier attempt are not prompt: the number is the client's prompt in every attempt.
  const auto sent = static_cast<size_t>(request_.tokens_size());
  if (accepted.prompt_tokens() != sent) {
    log::error("request {} attempt {}: {} tokens were sent and {} accepted by {}", request_.request_id(), attempt_.counter(), sent,
               accepted.prompt_tokens(), lease_->address());
    return Fail(Integrity("A worker accepted another prompt than the one it was sent; its answer was discarded."));
  }
  if (std::exchange(attempt_accepted_, true)) {
    ++service_.metrics.stale_messages_total;
    return std::nullopt;
  }
  service_.metrics.pages_verified_total += accepted.pages_verified();
  verified_.AddPages(accepted.pages_verified());
  if (std::exchange(accepted_, true)) return std::nullopt;
  cached_tokens_ = std::min<uint64_t>(accepted.cached_tokens(), sent);
  Event event;
  event.kind = Kind::kAccepted;
  return event;
}

std::optional<Generation::Event> Generation::OnToken(const v1::Token& token) {
  const bool expected = attempt_accepted_ && token.index() == received_.size() && received_.size() < request_.max_tokens();
  if (!expected) {
    ++service_.metrics.stale_messages_total;
    return std::nullopt;
  }
  if (!service_.tokenizer->IsToken(token.token())) return Fail(Integrity("A worker sent a token outside of the vocabulary."));
  Event event;
  event.kind = Kind::kToken;
  event.token = {.token = token.token(), .logprob = token.logprob()};
  if (!TakeTop(token, event.token)) return Fail(Incomplete());
  received_.push_back(token.token());
  return event;
}

// A vocabulary that is smaller than what was asked for gives all that it has.
bool Generation::TakeTop(const v1::Token& token, TokenLogprobs& taken) const {
  const auto wanted = std::min(static_cast<int>(request_.top_logprobs()), service_.tokenizer->vocabulary_size());
  if (token.top_tokens_size() < wanted || token.top_logprobs_size() < wanted) return false;
  for (int i = 0; i < wanted; ++i) {
    if (!service_.tokenizer->IsToken(token.top_tokens(i))) return false;
    taken.top.emplace_back(token.top_tokens(i), token.top_logprobs(i));
  }
  return true;
}

std::optional<Generation::Event> Generation::OnFinished(const v1::Finished& finished) {
  // Another number generated than arrived: what is missing must not be passed over as a short answer.
  const size_t arrived = received_.size() - resumed_from_;
  if (!attempt_accepted_ || finished.generated_tokens() != arrived || finished.reason() == v1::Finished::UNKNOWN) {
    log::error("request {} attempt {}: finished after {} tokens, of which {} came", request_.request_id(), attempt_.counter(),
               finished.generated_tokens(), arrived);
    return Fail(Incomplete());
  }
  verified_.AddChecks(finished);
  Event event;
  event.kind = Kind::kFinished;
  event.reason = finished.reason();
  DropCall();
  return event;
}

std::optional<Generation::Event> Generation::FinishedByItself() const {
  if (received_.empty()) return std::nullopt;
  Event event;
  event.kind = Kind::kFinished;
  const auto& stops = request_.stop_tokens();
  if (received_.size() > request_.min_tokens() && std::find(stops.begin(), stops.end(), received_.back()) != stops.end()) {
    event.reason = v1::Finished::STOP;
    return event;
  }
  if (received_.size() < request_.max_tokens()) return std::nullopt;
  event.reason = v1::Finished::LENGTH;
  return event;
}

bool Generation::MayRetry(const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return false;
  if (service_.stopping || retries_ >= service_.options.max_retries) return false;
  if (!received_.empty() && !service_.workers.HasOther(failed_on_)) return false;
  if (service_.retries.TryRetry(std::chrono::steady_clock::now())) return true;
  ++service_.metrics.retries_refused_total;
  return false;
}

std::optional<Generation::Event> Generation::OnFailure(grpc::Status status) {
  // OK without Finished is a stream cut short; and we did not cancel it, so that it was the worker's end.
  if (status.ok() || status.error_code() == grpc::StatusCode::CANCELLED) {
    status = grpc::Status(grpc::StatusCode::UNAVAILABLE, absl::StrCat("ended early: ", status.error_message()));
  }
  if (lease_) failed_on_ = lease_.get();
  const std::string address = lease_ ? lease_->address() : "(none)";
  DropCall();
  if (std::optional<Event> event = FinishedByItself()) return event;
  const bool retry = MayRetry(status);
  log::warn("request {} attempt {} at {} failed after {} tokens, code {}{}: {}", request_.request_id(), attempt_.counter(), address,
            received_.size(), static_cast<int>(status.error_code()), retry ? ", to be tried again" : "", status.error_message());
  if (!retry) return Fail(FromGrpc(status));
  launch_at_ = std::chrono::steady_clock::now() + kFirstBackOff * (1 << retries_);
  ++retries_;
  ++service_.metrics.retries_total;
  if (!received_.empty()) ++service_.metrics.resumed_total;
  return std::nullopt;
}

Generation::Event Generation::Fail(ApiError error) {
  DropCall();
  Event event;
  event.kind = Kind::kFailed;
  event.error = std::move(error);
  return event;
}

}  // namespace cofferdam::gateway
