#include "sim/gateway.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/faults.h"
#include "sim/world.h"

namespace cofferdam::sim {
namespace {

constexpr int kMaxRetries = 3;
constexpr int kUnreachedProbes = 10;  // until a worker counts as silent
constexpr Duration kBackOff = milliseconds(50);

}  // namespace

void Gateway::OnRequest(const Input& input) {
  const uint64_t id = next_request_++;
  Request& request = requests_[id];
  request.input = &input;
  for (const TokenId token : input.tokens) request.oracle.Append(token);
  ++open_;
  if (input.patience > Duration()) {
    world_.clock().After(input.patience, [this, id] { Leave(id); });
  }
  Launch(id);
}

void Gateway::Leave(uint64_t id) {
  Request& request = requests_.at(id);
  if (!request.done) End(request, absl::CancelledError("the client has left"));
}

void Gateway::Lose(uint64_t id) {
  if (!requests_.at(id).done) OnFailure(id, absl::UnavailableError("the connection broke"));
}

void Gateway::Launch(uint64_t id) {
  Request& request = requests_.at(id);
  if (request.done) return;
  const auto decode = world_.PickDecode(index_, request.failed_on);
  if (!decode.has_value()) return OnFailure(id, absl::UnavailableError("no decode worker is ready"));
  request.decode = *decode;
  request.attempt = {.boot_id = index_ + 1, .counter = next_attempt_++};
  request.attempt_accepted = false;
  request.resumed_from = request.received.size();
  request.unreached = 0;
  Call call{.attempt = request.attempt,
            .domain = request.input->domain,
            .tokens = request.input->tokens,
            .resumed_tokens = static_cast<uint32_t>(request.received.size()),
            .max_output = request.input->max_output - static_cast<uint32_t>(request.received.size()),
            .priority = request.input->priority};
  call.tokens.insert(call.tokens.end(), request.received.begin(), request.received.end());
  request.call = world_.OpenCall(index_, *decode, std::move(call));
  by_call_[*request.call] = id;
}

// Null: of an attempt that is not the present one. A call that was dropped is heard no more, and each message names its attempt.
Gateway::Request* Gateway::Of(CallId id, const handoff::AttemptId& attempt) {
  Request& request = requests_.at(by_call_.at(id));
  if (request.done) return nullptr;
  const bool current = request.call == id && request.attempt == attempt;
  return current || FaultIsOn(Fault::kTwoStreams) ? &request : nullptr;
}

void Gateway::OnAccepted(CallId id, const handoff::AttemptId& attempt) {
  if (Request* const request = Of(id, attempt)) request->attempt_accepted = true;
}

void Gateway::OnToken(CallId id, const handoff::AttemptId& attempt, uint32_t index, Answer answer) {
  Request* const request = Of(id, attempt);
  if (request == nullptr || !request->attempt_accepted || index != request->received.size() ||
      request->received.size() >= request->input->max_output)
    return;
  if (request->call != id) return world_.Found("invariant", "I8: a token of an earlier attempt reached the client");
  const Answer right = request->oracle.Next();
  if (answer != right) {
    return world_.Found("wrong answer", absl::StrCat("token ", index, " is ", answer.token, " (", answer.logprob,
                                                     ") and should be ", right.token, " (", right.logprob, ")"));
  }
  request->received.push_back(answer.token);
  request->oracle.Append(answer.token);
}

void Gateway::OnFinished(CallId id, const handoff::AttemptId& attempt, uint32_t generated) {
  Request* const request = Of(id, attempt);
  if (request == nullptr) return;
  const bool complete = request->attempt_accepted && generated == request->received.size() - request->resumed_from;
  End(*request, complete ? absl::OkStatus() : absl::InternalError("the answer is incomplete"));
}

void Gateway::OnEnded(CallId id, const absl::Status& status) {
  const uint64_t of = by_call_.at(id);
  const Request& request = requests_.at(of);
  if (!request.done && request.call == id) OnFailure(of, status);
}

void Gateway::OnFailure(uint64_t id, absl::Status status) {
  Request& request = requests_.at(id);
  if (status.ok() || absl::IsCancelled(status)) status = absl::UnavailableError("ended early");
  if (request.call.has_value()) {
    world_.CancelCall(*std::exchange(request.call, std::nullopt));
    request.failed_on = request.decode;
  }
  if (request.received.size() == request.input->max_output) return End(request, absl::OkStatus());
  if (!absl::IsUnavailable(status) || request.retries >= kMaxRetries) return End(request, status);
  world_.clock().After(kBackOff * (1 << request.retries++), [this, id] { Launch(id); });
}

void Gateway::End(Request& request, const absl::Status& status) {
  request.done = true;
  --open_;
  if (request.call.has_value()) world_.CancelCall(*std::exchange(request.call, std::nullopt));
  const bool whole = request.received.size() == request.input->max_output;
  if (status.ok() && !whole) world_.Found("wrong answer", "an answer was cut short and called whole");
  world_.OnRequestEnded(*request.input, request.received.size(), status);
}

void Gateway::Probe() {
  for (auto& [id, request] : requests_) {
    if (request.done || !request.call.has_value()) continue;
    request.unreached = world_.Reaches(index_, request.decode) ? 0 : request.unreached + 1;
    if (request.unreached >= kUnreachedProbes) OnFailure(id, absl::UnavailableError("the worker has gone silent"));
  }
}

}  // namespace cofferdam::sim
