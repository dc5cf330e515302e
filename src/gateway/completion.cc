#include "gateway/completion.h"

#include <sodium.h>

#include <array>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/faults.h"
#include "base/log.h"
#include "gateway/routes.h"

namespace cofferdam::gateway {
namespace {

namespace asio = boost::asio;

constexpr size_t kWriteBytes = 16 << 10;  // events that are there together are written together

std::string NewId(bool chat) {
  std::array<unsigned char, 16> bytes{};
  std::array<char, 33> hex{};
  randombytes_buf(bytes.data(), bytes.size());
  sodium_bin2hex(hex.data(), hex.size(), bytes.data(), bytes.size());
  return absl::StrCat(chat ? "chatcmpl-" : "cmpl-", hex.data());
}

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
      domain_(std::move(head.domain)),
      chat_(head.chat),
      verify_(std::move(head.verify)),
      id_(NewId(head.chat)) {}

asio::awaitable<Completion::Outcome> Completion::Run(std::string body, Quota::Share share) {
  client_.StartWatch([this] {
    if (generation_ != nullptr) generation_->Cancel();
  });
  Outcome outcome = co_await Answer(std::move(body), std::move(share));
  co_await client_.StopWatch();
  if (client_.gone()) {
    outcome.keep_alive = false;
    if (finish_reason_.empty() && outcome.status < 400) outcome.status = kClientGone;
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
  generation_ = std::make_unique<Generation>(service_, client_.strand(), WorkerRequest());
  // Whatever a worker refuses is known before the first byte of the answer is sent.
  Generation::Event event = co_await generation_->Next();
  queued_.Release();
  if (event.kind == Generation::Kind::kFailed) co_return co_await ReplyError(std::move(event.error));
  if (event.kind == Generation::Kind::kCancelled) co_return GoneOutcome();
  service_.metrics.prompt_tokens_total += prompt_.size();
  output_ = std::make_unique<OutputText>(*service_.tokenizer, request_.stop);
  if (event.kind == Generation::Kind::kFinished) co_return co_await ReplyError(HttpError(500, "A worker's answer is empty."));
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
  if (!IsServed(service_, request_.model)) return ModelNotFound(request_.model);
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
  const uint64_t limit = fleet->context_tokens;
  const uint64_t left = limit > prompt_.size() ? limit - prompt_.size() : 0;
  const uint64_t output = request_.max_tokens.has_value() ? *request_.max_tokens : std::max<uint64_t>(left, 1);
  if (output > left && !FaultIsOn(Fault::kContextNotJudged))
    return FromStatus(ContextLengthExceeded(fleet->context_role, prompt_.size(), output, limit));
  max_tokens_ = static_cast<uint32_t>(std::min<uint64_t>(output, UINT32_MAX));
  in_flight_ = service_.in_flight.Take(1);
  queued_ = service_.queue.Take(1);
  if (!in_flight_ || !queued_) {
    return HttpError(429, "Too many requests are waiting. Try again later.", std::string(error_code::kQueueFull));
  }
  return std::nullopt;
}

v1::GenerateRequest Completion::WorkerRequest() {
  v1::GenerateRequest request;
  request.set_request_id(id_);
  request.set_domain(domain_);
  request.mutable_tokens()->Add(prompt_.begin(), prompt_.end());
  request.set_max_tokens(max_tokens_);
  request.set_cache_salt(request_.cache_salt);
  *request.mutable_sampling() = request_.sampling;
  request.set_finish_transfer_on_disconnect(service_.options.finish_transfer_on_disconnect);
  if (!request_.ignore_eos) {
    const auto& ends = service_.tokenizer->end_of_generation_tokens();
    stop_tokens_.insert(ends.begin(), ends.end());
  }
  stop_tokens_.insert(request_.stop_token_ids.begin(), request_.stop_token_ids.end());
  for (const TokenId id : stop_tokens_) request.add_stop_tokens(id);
  return request;
}

asio::awaitable<Completion::Outcome> Completion::Reply(HttpReply reply) {
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
  co_return co_await Reply(ErrorReply(error));
}

Completion::Step Completion::Take(Generation::Event event) {
  Step step;
  switch (event.kind) {
    case Generation::Kind::kAccepted:
      break;
    case Generation::Kind::kToken:
      if (!first_token_.has_value()) {
        first_token_ = std::chrono::steady_clock::now();
        service_.metrics.time_to_first_token.Observe(Seconds(*first_token_ - started_));
      }
      ++generated_;
      // The token that ends the generation is no text.
      if (!stop_tokens_.contains(event.token)) step.text = output_->Push(event.token);
      if (output_->stopped()) {
        finish_reason_ = "stop";
        step.over = true;
        generation_->Cancel();
      }
      break;
    case Generation::Kind::kFinished:
      step.text = output_->Finish();
      finish_reason_ = event.reason == v1::Finished::LENGTH && !output_->stopped() ? "length" : "stop";
      step.over = true;
      break;
    case Generation::Kind::kFailed:
      step.error = std::move(event.error);
      step.over = true;
      break;
    case Generation::Kind::kCancelled:
      step.gone = true;
      step.over = true;
      break;
  }
  return step;
}

asio::awaitable<Completion::Outcome> Completion::Whole() {
  std::string text = EchoText();
  for (;;) {
    Step step = Take(co_await generation_->Next());
    text += step.text;
    if (step.gone) co_return GoneOutcome();
    if (step.error.has_value()) co_return co_await ReplyError(*std::move(step.error));
    if (step.over) break;
  }
  HttpReply reply = JsonReply(Writer().Whole(text, finish_reason_, UsageSoFar()));
  reply.headers = AnswerHeaders();
  co_return co_await Reply(std::move(reply));
}

asio::awaitable<Completion::Outcome> Completion::Stream() {
  const ResponseWriter writer = Writer();
  std::string out = writer.FirstChunk();
  if (const std::string echo = EchoText(); !echo.empty()) out += writer.TextChunk(echo);
  std::string bytes = RenderStreamHead(framing_, AnswerHeaders()) + RenderChunk(out, framing_);
  bool failed = false;
  bool over = false;
  Outcome outcome;
  outcome.status = 200;
  while (!over) {
    // A slow client holds this up, that fills the call's queue, and that stops the reading from the worker.
    const bool sent = co_await client_.Write(bytes);
    if (!sent) {
      generation_->Cancel();
      co_return GoneOutcome();
    }
    out.clear();
    std::optional<Generation::Event> event = co_await generation_->Next();
    while (event.has_value()) {
      const Step step = Take(*std::move(event));
      if (step.gone) co_return GoneOutcome();
      Render(writer, step, out);
      failed = step.error.has_value();
      over = step.over;
      if (failed) error_code_ = step.error->code;
      if (over || out.size() >= kWriteBytes) break;
      event = generation_->TryNext();
    }
    bytes = RenderChunk(out, framing_);
  }
  bytes += RenderLastChunk(framing_);
  const bool all_sent = co_await client_.Write(bytes);
  if (failed) service_.metrics.CountRejection(error_code_);
  // The status line has been sent; after an error the end of the connection says that this was not all.
  outcome.keep_alive = all_sent && !failed && framing_.keep_alive && !framing_.http_1_0;
  co_return outcome;
}

void Completion::Render(const ResponseWriter& writer, const Step& step, std::string& out) const {
  if (!step.text.empty()) out += writer.TextChunk(step.text);
  if (step.error.has_value()) out += ResponseWriter::ErrorEvent(*step.error);
  if (!step.over || step.error.has_value()) return;
  out += writer.FinishChunk(finish_reason_);
  if (request_.include_usage) out += writer.UsageChunk(UsageSoFar());
  if (verify_.has_value()) out += ResponseWriter::VerifiedComment(generation_->verified().Text());
  out += ResponseWriter::Done();
}

ResponseWriter Completion::Writer() const {
  ResponseWriter::Header header;
  header.chat = chat_;
  header.include_usage = request_.include_usage;
  header.id = id_;
  header.model = request_.model.empty() ? service_.options.served_model_names.front() : request_.model;
  header.created = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return ResponseWriter(header);
}

Usage Completion::UsageSoFar() const {
  Usage usage;
  usage.prompt_tokens = prompt_.size();
  usage.completion_tokens = generated_;
  if (!service_.options.hide_cached_tokens) usage.cached_tokens = generation_->cached_tokens();
  return usage;
}

std::string Completion::EchoText() const {
  if (!request_.echo) return {};
  if (const auto* text = std::get_if<std::string>(&request_.prompt)) return *text;
  return service_.tokenizer->Detokenize(prompt_, false);
}

HttpHeaders Completion::AnswerHeaders() const {
  if (!verify_.has_value()) return {};
  return {{kVerifiedHeader, generation_->verified().Text()}};
}

void Completion::Finish(const Outcome& outcome) {
  const auto now = std::chrono::steady_clock::now();
  service_.metrics.generated_tokens_total += generated_;
  if (outcome.status == kClientGone) ++service_.metrics.disconnects_total;
  if (outcome.status == 200) service_.metrics.end_to_end.Observe(Seconds(now - started_));
  log::info("request {} domain {} status {} {} prompt {} output {} first_token_ms {} total_ms {}", id_, domain_, outcome.status,
            !finish_reason_.empty() ? finish_reason_ : (error_code_.empty() ? "-" : error_code_), prompt_.size(), generated_,
            first_token_.has_value() ? Milliseconds(*first_token_ - started_) : -1, Milliseconds(now - started_));
}

}  // namespace cofferdam::gateway
