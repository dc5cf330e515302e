#include "gateway/completion.h"

#include <algorithm>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/faults.h"
#include "base/log.h"
#include "gateway/random_hex.h"
#include "gateway/routes.h"

namespace cofferdam::gateway {
namespace {

namespace asio = boost::asio;

constexpr size_t kMaxLogprobBytes = 16 << 20;  // of an answer that is not streamed, and so held until its end
const char* const kTooManyLogprobs =
    "The log probabilities of this answer are over 16 MiB. Set 'stream' to true, or ask for fewer, or for a shorter answer.";
constexpr size_t kWriteBytes = 16 << 10;  // events that are there together are written together

std::string NewId(bool chat) { return (chat ? "chatcmpl-" : "cmpl-") + RandomHex(16); }

Completion::Outcome GoneOutcome() {
  Completion::Outcome outcome;
  outcome.status = kClientGone;
  return outcome;
}

int64_t Milliseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

double Seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Completion::Completion(Service& service, Client& client, Framing framing, Head head)
    : service_(service),
      client_(client),
      framing_(std::move(framing)),
      grant_(std::move(head.grant)),
      chat_(head.chat),
      verify_(std::move(head.verify)),
      id_(NewId(head.chat)) {
  if (framing_.request_id.empty()) framing_.request_id = id_;
}

asio::awaitable<Completion::Outcome> Completion::Run(std::string body, Quota::Share share) {
  client_.StartWatch([this] {
    if (choices_ != nullptr) choices_->Cancel();
  });
  Outcome outcome = co_await Answer(std::move(body), std::move(share));
  co_await client_.StopWatch();
  if (client_.gone()) {
    outcome.keep_alive = false;
    if (!all_over() && outcome.status < 400) outcome.status = kClientGone;
  }
  Finish(outcome);
  co_return outcome;
}

asio::awaitable<Completion::Outcome> Completion::Answer(std::string body, Quota::Share share) {
  std::optional<ApiError> error = JudgeVerifyHeader(verify_);
  if (!error.has_value()) error = co_await Prepare(std::move(body));
  share.Release();
  if (!error.has_value() && !client_.gone()) error = Admit();
  if (client_.gone()) co_return GoneOutcome();
  if (error.has_value()) co_return co_await ReplyError(*std::move(error));
  choices_ = std::make_unique<Choices>(service_, client_.strand(), PlanOfChoices());
  // Whatever a worker refuses of the first choice is known before the first byte of the answer is sent.
  Step step = co_await choices_->Next();
  queued_.Release();
  // What no worker took costs the key nothing.
  if (step.kind != Step::Kind::kAccepted) grant_->use->Refund(prompt_.size(), std::chrono::steady_clock::now());
  if (step.kind == Step::Kind::kFailed) co_return co_await ReplyError(std::move(step.error));
  if (step.kind == Step::Kind::kGone) co_return GoneOutcome();
  service_.metrics.prompt_tokens_total += prompt_.size();
  if (step.kind == Step::Kind::kOver) co_return co_await ReplyError(HttpError(500, "A worker's answer is empty."));
  if (request_.stream) co_return co_await Stream();
  co_return co_await Whole();
}

asio::awaitable<std::optional<ApiError>> Completion::Prepare(std::string body) {
  const bool elsewhere = body.size() > kInlineBodyBytes;
  if (elsewhere) co_await asio::post(asio::bind_executor(service_.text_pool.get_executor(), asio::use_awaitable));
  std::optional<ApiError> error;
  try {
    error = Parse(body);
  } catch (const std::exception&) {  // out of memory is one request's misfortune
    error = HttpError(500, "The request could not be read.", "internal_error");
  }
  if (elsewhere) co_await asio::post(asio::bind_executor(client_.strand(), asio::use_awaitable));
  co_return error;
}

std::optional<ApiError> Completion::Parse(const std::string& body) {
  std::variant<Json, ApiError> parsed = ParseObject(body);
  if (ApiError* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  std::variant<CompletionRequest, ApiError> request =
      ParseCompletion(std::get<Json>(parsed), chat_, service_.tokenizer->vocabulary_size());
  if (ApiError* error = std::get_if<ApiError>(&request)) return std::move(*error);
  request_ = std::get<CompletionRequest>(std::move(request));
  std::variant<std::string, ApiError> model = ModelOf(service_, *grant_, request_.model);
  if (ApiError* error = std::get_if<ApiError>(&model)) return std::move(*error);
  request_.model = std::get<std::string>(std::move(model));
  return TokenizePrompt();
}

std::optional<ApiError> Completion::TokenizePrompt() {
  const auto take = [this](const std::string& text) -> std::optional<ApiError> {
    absl::StatusOr<std::vector<TokenId>> tokens = service_.tokenizer->Tokenize(text, true, true);
    if (!tokens.ok()) return InvalidRequest(std::string(tokens.status().message()), chat_ ? "messages" : "prompt");
    prompt_ = *std::move(tokens);
    return std::nullopt;
  };
  if (chat_) {
    const absl::StatusOr<std::string> prompt = service_.chat->Apply(request_.messages, true);
    if (!prompt.ok()) return InvalidRequest(std::string(prompt.status().message()), "messages");
    request_.messages.clear();
    return take(*prompt);
  }
  if (const auto* tokens = std::get_if<std::vector<TokenId>>(&request_.prompt)) {
    prompt_ = *tokens;
    return std::nullopt;
  }
  // An empty text would be a lone BOS; the client sees that it sent nothing.
  if (std::get<std::string>(request_.prompt).empty()) return std::nullopt;
  return take(std::get<std::string>(request_.prompt));
}

std::optional<ApiError> Completion::Admit() {
  if (prompt_.empty()) return InvalidRequest("The prompt is empty.", chat_ ? "messages" : "prompt");
  if (service_.stopping) return NoWorker("The server is stopping.");
  const std::shared_ptr<const Fleet> fleet = service_.workers.fleet();
  if (!fleet->ready) return NoWorker("No worker is available at the moment. Try again later.");
  if (std::optional<ApiError> error = JudgeLength(*fleet)) return error;
  in_flight_ = service_.in_flight.Take(request_.choices);
  queued_ = service_.queue.Take(1);
  if (!in_flight_ || !queued_) {
    return HttpError(429, "Too many requests are waiting. Try again later.", std::string(error_code::kQueueFull));
  }
  if (std::optional<ApiError> error = grant_->use->Start(request_.choices, prompt_.size(), std::chrono::steady_clock::now())) {
    return error;
  }
  key_share_ = KeyShare(grant_->use, request_.choices);
  return std::nullopt;
}

std::optional<ApiError> Completion::JudgeLength(const Fleet& fleet) {
  const uint64_t own = grant_->record.limits.context_tokens;
  const bool by_key = own > 0 && own < fleet.context_tokens;
  const uint64_t limit = by_key ? own : fleet.context_tokens;
  const uint64_t left = limit > prompt_.size() ? limit - prompt_.size() : 0;
  const uint64_t output = request_.max_tokens.has_value() ? *request_.max_tokens : std::max<uint64_t>(left, 1);
  if (output > left && by_key) return FromStatus(KeyContextExceeded(prompt_.size(), output, limit));
  if (output > left && !FaultIsOn(Fault::kContextNotJudged))
    return FromStatus(ContextLengthExceeded(fleet.context_role, prompt_.size(), output, limit));
  max_tokens_ = static_cast<uint32_t>(std::min<uint64_t>(output, UINT32_MAX));
  if (request_.min_tokens > max_tokens_) {
    return InvalidRequest(absl::StrCat("'min_tokens' is ", request_.min_tokens, ", but after this prompt there is room for ",
                                       max_tokens_, " tokens."),
                          "min_tokens");
  }
  return std::nullopt;
}

Choices::Plan Completion::PlanOfChoices() const {
  Choices::Plan plan;
  plan.count = request_.choices;
  plan.seeded = request_.seeded;
  plan.stops = request_.stop;
  plan.logprobs = request_.logprobs;
  v1::GenerateRequest& request = plan.request;
  request.set_request_id(id_);
  request.set_domain(grant_->record.domain);
  request.mutable_tokens()->Add(prompt_.begin(), prompt_.end());
  request.set_max_tokens(max_tokens_);
  request.set_min_tokens(request_.min_tokens);
  request.set_top_logprobs(request_.top_logprobs);
  request.set_priority(std::min(kMaxPriority, request_.priority + grant_->record.priority));
  request.set_cache_salt(request_.cache_salt);
  *request.mutable_sampling() = request_.sampling;
  request.set_finish_transfer_on_disconnect(service_.options.finish_transfer_on_disconnect);
  if (!request_.ignore_eos) {
    const auto& ends = service_.tokenizer->end_of_generation_tokens();
    plan.stop_tokens.insert(ends.begin(), ends.end());
  }
  plan.stop_tokens.insert(request_.stop_token_ids.begin(), request_.stop_token_ids.end());
  for (const TokenId id : plan.stop_tokens) request.add_stop_tokens(id);
  return plan;
}

void Completion::GiveBack() {
  in_flight_.Release();
  queued_.Release();
  key_share_ = KeyShare();
}

asio::awaitable<Completion::Outcome> Completion::Reply(HttpReply reply) {
  GiveBack();
  const int status = reply.status;
  const std::string bytes = RenderReply(reply, framing_);
  const bool sent = co_await client_.Write(bytes);
  Outcome outcome;
  outcome.status = sent ? status : kClientGone;
  outcome.keep_alive = sent && framing_.keep_alive;
  co_return outcome;
}

asio::awaitable<Completion::Outcome> Completion::ReplyError(ApiError error) {
  if (!chat_ && error.param == "messages") error.param = "prompt";
  error_code_ = error.code;
  service_.metrics.CountRejection(error.code.empty() ? absl::StrCat("http_", error.status) : error.code);
  HttpReply reply = ErrorReply(error);
  std::ranges::move(grant_->use->Headers(std::chrono::steady_clock::now()), std::back_inserter(reply.headers));
  co_return co_await Reply(std::move(reply));
}

void Completion::Charge() {
  const uint64_t generated = choices_->generated();
  grant_->use->Charge(generated - charged_, std::chrono::steady_clock::now());
  charged_ = generated;
}

void Completion::Note(const Step& step) {
  Charge();
  if (first_token_.has_value() || choices_->generated() == 0) return;
  if (step.kind != Step::Kind::kText && step.kind != Step::Kind::kOver) return;
  first_token_ = std::chrono::steady_clock::now();
  service_.metrics.time_to_first_token.Observe(Seconds(*first_token_ - started_));
}

asio::awaitable<Completion::Outcome> Completion::Whole() {
  std::vector<ResponseWriter::WholeChoice> answers(request_.choices);
  for (ResponseWriter::WholeChoice& answer : answers) answer.text = EchoText();
  std::vector<LogprobsJson> logprobs(request_.choices, LogprobsJson(*service_.tokenizer, chat_));
  size_t logprob_bytes = 0;
  while (!choices_->all_over()) {
    Step step = co_await choices_->Next();
    Note(step);
    if (step.kind == Step::Kind::kGone) co_return GoneOutcome();
    if (step.kind == Step::Kind::kFailed) co_return co_await ReplyError(std::move(step.error));
    answers.at(step.choice).text += step.text;
    const size_t before = logprobs[step.choice].bytes();
    logprobs[step.choice].Add(step.logprobs);
    logprob_bytes += logprobs[step.choice].bytes() - before;
    if (logprob_bytes > kMaxLogprobBytes) {
      choices_->Cancel();
      co_return co_await ReplyError(InvalidRequest(kTooManyLogprobs, "logprobs"));
    }
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    answers[i].reason = choices_->finish_reason(i);
    if (request_.logprobs) answers[i].logprobs = logprobs[i].Json();
  }
  HttpReply reply = JsonReply(Writer().Whole(answers, UsageSoFar()));
  reply.headers = AnswerHeaders();
  co_return co_await Reply(std::move(reply));
}

asio::awaitable<Completion::Outcome> Completion::Stream() {
  const ResponseWriter writer = Writer();
  std::string out = FirstEvents(writer);
  std::string bytes = RenderStreamHead(framing_, AnswerHeaders()) + RenderChunk(out, framing_);
  bool failed = false;
  Outcome outcome;
  outcome.status = 200;
  while (!failed && !choices_->all_over()) {
    // A slow client holds this up, that fills the calls' queues, and that stops the reading from the workers.
    const bool sent = co_await client_.Write(bytes);
    if (!sent) {
      choices_->Cancel();
      co_return GoneOutcome();
    }
    out.clear();
    std::optional<Step> step = co_await choices_->Next();
    while (step.has_value()) {
      if (step->kind == Step::Kind::kGone) co_return GoneOutcome();
      Note(*step);
      Render(writer, *step, out);
      failed = step->kind == Step::Kind::kFailed;
      if (failed) error_code_ = step->error.code;
      if (failed || choices_->all_over() || out.size() >= kWriteBytes) break;
      step = choices_->TryNext();
    }
    bytes = RenderChunk(out, framing_);
  }
  bytes += RenderLastChunk(framing_);
  GiveBack();
  const bool all_sent = co_await client_.Write(bytes);
  if (failed) service_.metrics.CountRejection(error_code_);
  // The status line has been sent; after an error the end of the connection says that this was not all.
  outcome.keep_alive = all_sent && !failed && framing_.keep_alive && !framing_.http_1_0;
  co_return outcome;
}

std::string Completion::FirstEvents(const ResponseWriter& writer) const {
  const std::string echo = EchoText();
  std::string out;
  for (size_t i = 0; i < request_.choices; ++i) {
    out += writer.FirstChunk(i);
    if (!echo.empty()) out += writer.TextChunk(i, echo);
  }
  return out;
}

void Completion::Render(const ResponseWriter& writer, const Step& step, std::string& out) const {
  if (!step.logprobs.empty()) {
    LogprobsJson logprobs(*service_.tokenizer, chat_);
    logprobs.Add(step.logprobs);
    out += writer.TextChunk(step.choice, step.text, logprobs.Json());
  } else if (!step.text.empty()) {
    out += writer.TextChunk(step.choice, step.text);
  }
  if (step.kind == Step::Kind::kFailed) out += ResponseWriter::ErrorEvent(step.error);
  if (step.kind != Step::Kind::kOver) return;
  out += writer.FinishChunk(step.choice, choices_->finish_reason(step.choice));
  if (!choices_->all_over()) return;
  if (request_.include_usage) out += writer.UsageChunk(UsageSoFar());
  if (verify_.has_value()) out += ResponseWriter::VerifiedComment(choices_->verified().Text());
  out += ResponseWriter::Done();
}

ResponseWriter Completion::Writer() const {
  ResponseWriter::Header header;
  header.chat = chat_;
  header.include_usage = request_.include_usage;
  header.id = id_;
  header.model = request_.model;
  header.fingerprint = service_.fingerprint;
  header.created = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return ResponseWriter(header);
}

Usage Completion::UsageSoFar() const {
  Usage usage;
  usage.prompt_tokens = prompt_.size();
  usage.completion_tokens = choices_->generated();
  if (!service_.options.hide_cached_tokens) usage.cached_tokens = choices_->cached_tokens();
  return usage;
}

std::string Completion::EchoText() const {
  if (!request_.echo) return {};
  if (const auto* text = std::get_if<std::string>(&request_.prompt)) return *text;
  return service_.tokenizer->Detokenize(prompt_, false);
}

HttpHeaders Completion::AnswerHeaders() const {
  HttpHeaders headers = grant_->use->Headers(std::chrono::steady_clock::now());
  if (verify_.has_value()) headers.emplace_back(kVerifiedHeader, choices_->verified().Text());
  return headers;
}

void Completion::Finish(const Outcome& outcome) {
  const auto now = std::chrono::steady_clock::now();
  const size_t generated = choices_ != nullptr ? choices_->generated() : 0;
  const std::string& end = all_over() ? choices_->finish_reason(0) : error_code_;
  service_.metrics.generated_tokens_total += generated;
  if (outcome.status == kClientGone) ++service_.metrics.disconnects_total;
  if (outcome.status == 200) service_.metrics.end_to_end.Observe(Seconds(now - started_));
  log::info("request {} domain {} tenant {} key {} status {} {} prompt {} output {} first_token_ms {} total_ms {}", id_,
            grant_->record.domain, grant_->record.tenant, grant_->record.id, outcome.status, end.empty() ? "-" : end,
            prompt_.size(), generated, first_token_.has_value() ? Milliseconds(*first_token_ - started_) : -1,
            Milliseconds(now - started_));
}

}  // namespace cofferdam::gateway
