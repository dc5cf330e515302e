// The JSON bodies of the OpenAI API. What the gateway accepts keeps its limits, means the same when it is written again, and is
// accepted by workers, too.
#include <cmath>
#include <string>
#include <variant>

#include "fuzz.h"
#include "gateway/openai_request.h"
#include "model/sampler.h"
#include "worker/wire.h"

namespace cofferdam::gateway {
namespace {

constexpr int32_t kVocabulary = 1000;

bool IsToken(TokenId id) { return id >= 0 && id < kVocabulary; }

void CheckError(const ApiError& error) {
  CD_CHECK(error.status == 400 && !error.message.empty(), "a body that is refused is the client's fault, and it is told why");
  const std::string text = ErrorJson(error);
  CD_CHECK(text.size() < 4096 && Json::accept(text), "an error is JSON, and short");
}

void CheckPrompt(const CompletionRequest& request) {
  if (request.chat) {
    CD_CHECK(!request.messages.empty() && request.messages.size() <= 16384, "a chat has 1 to 16384 messages");
    for (const text::ChatMessage& message : request.messages) {
      CD_CHECK(!message.role.empty() && message.role.size() <= 9, "a message has a role of ours");
      CD_CHECK(message.content.empty() || message.parts.empty(), "a message is text or parts");
    }
  } else if (const auto* tokens = std::get_if<std::vector<TokenId>>(&request.prompt)) {
    CD_CHECK(std::ranges::all_of(*tokens, IsToken), "a prompt of tokens is of the vocabulary");
  }
}

void CheckLimits(const CompletionRequest& request) {
  CheckPrompt(request);
  CD_CHECK(!request.max_tokens.has_value() || (*request.max_tokens >= 1 && *request.max_tokens <= 1 << 30), "max_tokens");
  CD_CHECK(request.chat || request.max_tokens.has_value(), "a completion has a length");
  CD_CHECK(request.choices >= 1 && request.choices <= 16, "n");
  CD_CHECK(request.stop.size() <= 16, "stop");
  for (const std::string& stop : request.stop) CD_CHECK(!stop.empty() && stop.size() <= 1024, "stop strings");
  CD_CHECK(request.stop_token_ids.size() <= 256 && std::ranges::all_of(request.stop_token_ids, IsToken), "stop_token_ids");
  CD_CHECK(!request.include_usage || request.stream, "stream_options");
  CD_CHECK(request.model.size() <= 512, "model");
}

// The message that a decode worker gets, and its judgement.
void CheckWorkerAccepts(const CompletionRequest& request) {
  v1::GenerateRequest wire;
  *wire.mutable_sampling() = request.sampling;
  wire.mutable_stop_tokens()->Add(request.stop_token_ids.begin(), request.stop_token_ids.end());
  wire.set_priority(request.priority);
  wire.set_cache_salt(request.cache_salt);
  const auto spec = worker::FromWire(wire);
  CD_CHECK(spec.ok(), "what the gateway accepts is well-formed for a worker");
  CD_CHECK(model::Sampler::Create(*spec->sampling, kVocabulary).ok(), "sampling that the gateway accepts can be done");
}

bool Same(CompletionRequest a, CompletionRequest b) {
  if (!a.seeded) a.sampling.set_seed(0);  // drawn
  if (!b.seeded) b.sampling.set_seed(0);
  return a.sampling.SerializeAsString() == b.sampling.SerializeAsString() && a.model == b.model && a.prompt == b.prompt &&
         a.messages.size() == b.messages.size() && a.max_tokens == b.max_tokens && a.stop == b.stop &&
         a.stop_token_ids == b.stop_token_ids && a.choices == b.choices && a.seeded == b.seeded && a.stream == b.stream &&
         a.echo == b.echo && a.ignore_eos == b.ignore_eos && a.priority == b.priority && a.cache_salt == b.cache_salt;
}

void CompletionBody(const Json& object, const Json& again, bool chat) {
  const auto parsed = ParseCompletion(object, chat, kVocabulary), second = ParseCompletion(again, chat, kVocabulary);
  CD_CHECK(parsed.index() == second.index(), "what is written again is judged in the same way");
  if (const auto* error = std::get_if<ApiError>(&parsed)) return CheckError(*error);
  const auto& request = std::get<CompletionRequest>(parsed);
  CD_CHECK(Same(request, std::get<CompletionRequest>(second)), "what is written again means the same");
  CheckLimits(request);
  CheckWorkerAccepts(request);
}

// What /tokenize and /detokenize read.
void OtherBody(const Json& object) {
  Fields fields(object);
  const std::vector<text::ChatMessage> messages = ReadMessages(fields);
  if (!fields.error().has_value()) CD_CHECK(!messages.empty(), "a conversation has messages");
  Fields second(object);
  if (const Json* list = second.Find("tokens"); list != nullptr) {
    const std::vector<TokenId> tokens = ReadTokens(second, "tokens", *list, kVocabulary);
    CD_CHECK(std::ranges::all_of(tokens, IsToken), "tokens are of the vocabulary");
    CD_CHECK(second.error().has_value() || tokens.size() == list->size(), "no token is passed over");
  }
  const std::string prompt = second.String("prompt", 64);
  CD_CHECK(prompt.size() <= 64, "a string keeps its limit");
  for (const Fields* each : {&fields, &second}) {
    if (each->error().has_value()) CheckError(*each->error());
  }
}

}  // namespace
}  // namespace cofferdam::gateway

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cofferdam::gateway;
  cofferdam::fuzz::Input input(data, size);
  const int kind = input.Byte() % 3;
  const auto parsed = ParseObject(input.Rest());
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    CheckError(*error);
    return 0;
  }
  const Json& object = std::get<Json>(parsed);
  const auto again = ParseObject(object.dump());
  CD_CHECK(std::holds_alternative<Json>(again) && std::get<Json>(again) == object, "what was read can be written and read again");
  if (kind == 2) {
    OtherBody(object);
  } else {
    CompletionBody(object, std::get<Json>(again), kind == 0);
  }
  return 0;
}
