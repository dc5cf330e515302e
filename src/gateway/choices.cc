#include "gateway/choices.h"

#include <sodium.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace cofferdam::gateway {

Choices::Choices(Service& service, const boost::asio::any_io_executor& strand, Plan plan)
    : service_(service), strand_(strand), plan_(std::move(plan)), min_tokens_(plan_.request.min_tokens()), wake_(strand) {
  CD_CHECK(plan_.count > 0, "a request has a choice");
  // One choice, what most requests ask for, costs no copy of the prompt.
  v1::GenerateRequest first = plan_.count == 1 ? std::move(plan_.request) : plan_.request;
  Generation::Setting setting{.strand = strand_, .wake = &wake_};
  choices_.emplace_back(service_, std::move(setting), std::move(first), plan_.stops);
}

void Choices::StartOthers() {
  const Worker* home = choices_.front().generation.last_worker();
  for (uint32_t i = 1; i < plan_.count; ++i) {
    Generation::Setting setting{.strand = strand_, .wake = &wake_, .home = home};
    choices_.emplace_back(service_, std::move(setting), RequestOf(i), plan_.stops);
  }
  plan_.request.Clear();
}

v1::GenerateRequest Choices::RequestOf(uint32_t choice) const {
  v1::GenerateRequest request = plan_.request;
  // Logs and records of workers tell the choices apart.
  request.set_request_id(absl::StrCat(request.request_id(), "-", choice));
  uint64_t seed = request.sampling().seed() + choice;
  if (!plan_.seeded) randombytes_buf(&seed, sizeof seed);
  request.mutable_sampling()->set_seed(seed);
  return request;
}

boost::asio::awaitable<Choices::Step> Choices::Next() {
  for (;;) {
    if (std::optional<Step> step = TryNext()) co_return *std::move(step);
    co_await wake_.Wait(LongestSleep());
  }
}

std::optional<Choices::Step> Choices::TryNext() {
  if (cancelled_) return Step{};
  const size_t started = choices_.size();
  for (size_t tried = 0; tried < started; ++tried) {
    const size_t i = (turn_ + tried) % started;
    if (choices_[i].over()) continue;
    if (std::optional<Generation::Event> event = choices_[i].generation.TryNext()) {
      turn_ = i + 1;
      return Take(i, *std::move(event));
    }
  }
  return std::nullopt;
}

std::chrono::steady_clock::duration Choices::LongestSleep() const {
  std::chrono::steady_clock::duration sleep = std::chrono::seconds(1);
  for (const Choice& choice : choices_) {
    if (!choice.over()) sleep = std::min(sleep, choice.generation.LongestSleep());
  }
  return sleep;
}

void Choices::Cancel() {
  cancelled_ = true;
  for (Choice& choice : choices_) choice.generation.Cancel();
  wake_.Set();
}

Choices::Step Choices::Take(size_t index, Generation::Event event) {
  Choice& choice = choices_[index];
  Step step;
  step.choice = index;
  switch (event.kind) {
    case Generation::Kind::kAccepted:
      step.kind = Step::Kind::kAccepted;
      break;
    case Generation::Kind::kToken:
      TakeToken(choice, std::move(event.token), step);
      break;
    case Generation::Kind::kFinished:
      step.text = choice.output.Finish();
      End(choice, event.reason == v1::Finished::LENGTH && !choice.output.stopped() ? "length" : "stop", step);
      break;
    case Generation::Kind::kFailed:
      step.kind = Step::Kind::kFailed;
      step.error = std::move(event.error);
      Cancel();
      return step;
    case Generation::Kind::kCancelled:
      return step;
  }
  if (step.kind != Step::Kind::kAccepted && choices_.size() < plan_.count) StartOthers();
  return step;
}

void Choices::TakeToken(Choice& choice, TokenLogprobs token, Step& step) {
  step.kind = Step::Kind::kText;
  ++generated_;
  // The token that ends the generation is no text.
  if (plan_.stop_tokens.contains(token.token)) return;
  const uint64_t offset = choice.output.characters();
  const bool may_stop = choice.generation.tokens().size() > min_tokens_;
  step.text = may_stop ? choice.output.Push(token.token) : choice.output.PushUnstoppable(token.token);
  if (plan_.logprobs) {
    choice.logprobs.Push(std::move(token), offset, choice.output.end());
    step.logprobs = choice.logprobs.TakeShown(choice.output.shown());
  }
  if (!choice.output.stopped()) return;
  choice.generation.Cancel();
  End(choice, "stop", step);
}

void Choices::End(Choice& choice, const char* reason, Step& step) {
  step.kind = Step::Kind::kOver;
  std::ranges::move(choice.logprobs.TakeLast(choice.output.shown()), std::back_inserter(step.logprobs));
  choice.finish_reason = reason;
  ++over_;
  CD_CHECK(over_ <= plan_.count, "a choice ends once");
}

VerifiedPages Choices::verified() const {
  VerifiedPages sum;
  for (const Choice& choice : choices_) sum.Add(choice.generation.verified());
  return sum;
}

}  // namespace cofferdam::gateway
