#include "gateway/openai_request.h"

#include <sodium.h>

#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gateway/options.h"

namespace cofferdam::gateway {
namespace {

constexpr int64_t kMaxChoices = 16;
constexpr size_t kMaxMessages = 16384;
constexpr size_t kMaxParts = 4096;
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxStopTokens = 256;
constexpr size_t kMaxBiases = 1024;
constexpr size_t kMaxNameBytes = 512;
constexpr size_t kMaxSaltBytes = 128;  // no more than workers take
constexpr int64_t kMaxTokens = 1 << 30;

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

void ReadParts(Fields& fields, const std::string& where, const Json& parts, text::ChatMessage& message) {
  if (parts.size() > kMaxParts) return fields.Fail(where, absl::StrCat("must have at most ", kMaxParts, " parts"));
  for (const Json& part : parts) {
    const auto type = part.is_object() ? part.find("type") : part.end();
    if (!part.is_object() || type == part.end() || !type->is_string()) {
      return fields.Fail(where, "must be a string or an array of parts {\"type\": \"text\", \"text\": ...}");
    }
    if (type->get_ref<const std::string&>() != "text") {
      return fields.Fail(where, "has a part that is not of type 'text': this model reads only text");
    }
    const auto text = part.find("text");
    if (text == part.end() || !text->is_string()) return fields.Fail(where, "has a text part whose 'text' is not a string");
    message.parts.push_back(text->get<std::string>());
  }
}

void ReadContent(Fields& fields, const std::string& where, const Json& object, text::ChatMessage& message) {
  const auto content = object.find("content");
  if (content == object.end() || content->is_null()) {
    if (message.role != "assistant") fields.Fail(where, "is missing");
  } else if (content->is_string()) {
    message.content = content->get<std::string>();
  } else if (content->is_array()) {
    ReadParts(fields, where, *content, message);
  } else {
    fields.Fail(where, absl::StrCat("must be a string or an array of parts, not ", std::string(TypeName(*content))));
  }
}

text::ChatMessage ReadMessage(Fields& fields, const std::string& where, const Json& object) {
  text::ChatMessage message;
  if (!object.is_object()) {
    fields.Fail(where, "must be an object");
    return message;
  }
  const auto role = object.find("role");
  if (role != object.end() && role->is_string()) message.role = role->get<std::string>();
  bool known = false;
  for (const std::string_view name : kRoles) known = known || message.role == name;
  if (!known) {
    fields.Fail(where + ".role", "must be one of 'system', 'developer', 'user', 'assistant' and 'tool'");
    return message;
  }
  if (const auto id = object.find("tool_call_id"); id != object.end() && id->is_string()) {
    message.tool_call_id = id->get<std::string>();
  }
  if (const auto calls = object.find("tool_calls"); calls != object.end() && calls->is_array() && !calls->empty()) {
    fields.Fail(where + ".tool_calls", "is not supported yet");
  }
  ReadContent(fields, where + ".content", object, message);
  return message;
}

void ReadPrompt(Fields& fields, int32_t vocabulary, CompletionRequest& request) {
  const Json* prompt = fields.Find("prompt");
  if (prompt == nullptr) return fields.Fail("prompt", "is missing");
  if (prompt->is_string()) {
    request.prompt = prompt->get<std::string>();
  } else if (!prompt->is_array() || prompt->empty()) {
    fields.Fail("prompt", "must be a string, an array of one string, or an array of token ids");
  } else if (prompt->front().is_string() || prompt->front().is_array()) {
    if (prompt->size() != 1) return fields.Fail("prompt", "must hold one prompt; send the others as requests of their own");
    if (prompt->front().is_string()) {
      request.prompt = prompt->front().get<std::string>();
    } else {
      request.prompt = ReadTokens(fields, "prompt", prompt->front(), vocabulary);
    }
  } else {
    request.prompt = ReadTokens(fields, "prompt", *prompt, vocabulary);
  }
}

void ReadStop(Fields& fields, CompletionRequest& request) {
  const Json* stop = fields.Find("stop");
  if (stop == nullptr) return;
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (list.size() > kMaxStops) return fields.Fail("stop", absl::StrCat("must have at most ", kMaxStops, " strings"));
  for (const Json& entry : list) {
    if (!entry.is_string()) return fields.Fail("stop", "must be a string or an array of strings");
    const auto& text = entry.get_ref<const std::string&>();
    if (text.empty() || text.size() > kMaxStopBytes) {
      return fields.Fail("stop", absl::StrCat("must hold strings of 1 to ", kMaxStopBytes, " bytes"));
    }
    request.stop.push_back(text);
  }
}

void ReadBias(Fields& fields, int32_t vocabulary, v1::Sampling& sampling) {
  const Json* bias = fields.Find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return fields.Fail("logit_bias", "must be an object of token ids and numbers");
  if (bias->size() > kMaxBiases) return fields.Fail("logit_bias", absl::StrCat("must have at most ", kMaxBiases, " entries"));
  for (const auto& [key, value] : bias->items()) {
    TokenId id = -1;
    if (!absl::SimpleAtoi(key, &id) || id < 0 || id >= vocabulary) {
      return fields.Fail("logit_bias", absl::StrCat("must have token ids from 0 to ", vocabulary - 1, " as keys"));
    }
    if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100)) {
      return fields.Fail("logit_bias", "must have numbers from -100 to 100 as values");
    }
    sampling.add_bias_tokens(id);
    sampling.add_bias_values(value.get<float>());
  }
}

void ReadSampling(Fields& fields, int32_t vocabulary, CompletionRequest& request) {
  v1::Sampling& sampling = request.sampling;
  sampling.set_temperature(fields.Float("temperature", 1, {0, 2}));
  sampling.set_top_p(fields.Float("top_p", 1, {0, 1, true}));
  sampling.set_min_p(fields.Float("min_p", 0, {0, 1}));
  sampling.set_repetition_penalty(fields.Float("repetition_penalty", 1, {0, 10, true}));
  sampling.set_presence_penalty(fields.Float("presence_penalty", 0, {-2, 2}));
  sampling.set_frequency_penalty(fields.Float("frequency_penalty", 0, {-2, 2}));
  // -1 is what other servers call "off".
  const int64_t top_k = fields.Integer("top_k", {-1, std::numeric_limits<int32_t>::max()}).value_or(0);
  sampling.set_top_k(static_cast<int32_t>(top_k < 0 ? 0 : top_k));
  const auto seed = fields.Integer("seed", {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()});
  request.seeded = seed.has_value();
  uint64_t drawn = 0;
  if (!seed.has_value()) randombytes_buf(&drawn, sizeof drawn);
  sampling.set_seed(seed.has_value() ? static_cast<uint64_t>(*seed) : drawn);
  ReadBias(fields, vocabulary, sampling);
}

void ReadChoices(Fields& fields, CompletionRequest& request) {
  request.choices = static_cast<uint32_t>(fields.Integer("n", {1, kMaxChoices}).value_or(1));
  const auto best_of = fields.Integer("best_of", {1, kMaxChoices});
  // More than n would have to be judged by their log probabilities.
  if (best_of.has_value() && *best_of != request.choices) fields.Fail("best_of", "must be equal to 'n', or absent");
}

void ReadMaxTokens(Fields& fields, CompletionRequest& request) {
  const auto old_name = fields.Integer("max_tokens", {1, kMaxTokens});
  const auto new_name = request.chat ? fields.Integer("max_completion_tokens", {1, kMaxTokens}) : std::nullopt;
  if (old_name.has_value() && new_name.has_value() && *old_name != *new_name) {
    fields.Fail("max_completion_tokens", "and 'max_tokens' are both given and differ");
  }
  const auto given = new_name.has_value() ? new_name : old_name;
  if (given.has_value()) request.max_tokens = static_cast<uint32_t>(*given);
  if (!given.has_value() && !request.chat) request.max_tokens = 16;
}

void ReadMinTokens(Fields& fields, CompletionRequest& request) {
  request.min_tokens = static_cast<uint32_t>(fields.Integer("min_tokens", {0, kMaxTokens}).value_or(0));
  if (request.max_tokens.has_value() && request.min_tokens > *request.max_tokens) {
    fields.Fail("min_tokens", absl::StrCat("is ", request.min_tokens, ", more than 'max_tokens', which is ", *request.max_tokens));
  }
}

// A chat says whether and how many; a text completion says how many, and 0 means only those of the answer's own tokens.
void ReadLogprobs(Fields& fields, CompletionRequest& request) {
  const Json* top = fields.Find("top_logprobs");
  if (request.chat) {
    request.logprobs = fields.Bool("logprobs", false);
    request.top_logprobs = static_cast<uint32_t>(fields.Integer("top_logprobs", {0, kMaxTopLogprobs}).value_or(0));
    if (request.top_logprobs > 0 && !request.logprobs)
      fields.Fail("top_logprobs", "is allowed only together with 'logprobs': true");
    return;
  }
  if (top != nullptr) fields.Fail("top_logprobs", "is a field of chats; here 'logprobs' says how many");
  const Json* count = fields.Find("logprobs");
  if (count == nullptr || *count == false) return;
  request.logprobs = true;
  request.top_logprobs = static_cast<uint32_t>(fields.Integer("logprobs", {0, kMaxTopLogprobs}).value_or(0));
  if (request.echo) fields.Fail("logprobs", "together with 'echo' is not supported: those of prompts are not returned");
}

// What would change the answer and is not done is refused: an answer that ignores it would look right and be wrong.
void RefuseUnsupported(Fields& fields) {
  if (const Json* value = fields.Find("prompt_logprobs"); value != nullptr && *value != false) {
    fields.Fail("prompt_logprobs", "is not supported: the log probabilities of prompts are not returned");
  }
  for (const char* name : {"tools", "functions", "grammar", "guided_json", "guided_regex", "guided_grammar", "guided_choice",
                           "structured_outputs", "chat_template"}) {
    const Json* value = fields.Find(name);
    if (value != nullptr && !(value->is_array() && value->empty())) fields.Fail(name, "is not supported yet");
  }
  for (const char* name : {"use_beam_search", "continue_final_message"}) {
    if (fields.Bool(name, false)) fields.Fail(name, "is not supported yet");
  }
  if (const Json* choice = fields.Find("tool_choice"); choice != nullptr && *choice != "none" && *choice != "auto") {
    fields.Fail("tool_choice", "is not supported yet, except 'none' and 'auto'");
  }
  if (const Json* format = fields.Find("response_format"); format != nullptr) {
    const bool text = format->is_object() && format->contains("type") && (*format)["type"] == "text";
    if (!text) fields.Fail("response_format", "is not supported yet, except {\"type\": \"text\"}");
  }
  if (!fields.String("suffix", kMaxNameBytes).empty()) fields.Fail("suffix", "is not supported");
}

void ReadStreamOptions(Fields& fields, CompletionRequest& request) {
  request.stream = fields.Bool("stream", false);
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields.Fail("stream_options", "must be an object");
  if (!request.stream) return fields.Fail("stream_options", "is allowed only together with 'stream': true");
  Fields inner(*options);
  request.include_usage = inner.Bool("include_usage", false);
  if (inner.error().has_value()) fields.Fail("stream_options.include_usage", "must be a boolean");
}

}  // namespace

std::vector<text::ChatMessage> ReadMessages(Fields& fields) {
  std::vector<text::ChatMessage> messages;
  const Json* list = fields.Find("messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    fields.Fail("messages", list == nullptr ? "is missing" : "must be an array of at least one message");
    return messages;
  }
  if (list->size() > kMaxMessages) {
    fields.Fail("messages", absl::StrCat("must have at most ", kMaxMessages, " messages"));
    return messages;
  }
  for (size_t i = 0; i < list->size() && !fields.error().has_value(); ++i) {
    messages.push_back(ReadMessage(fields, absl::StrCat("messages[", i, "]"), (*list)[i]));
  }
  return messages;
}

std::vector<TokenId> ReadTokens(Fields& fields, std::string_view name, const Json& array, int32_t vocabulary) {
  std::vector<TokenId> tokens;
  if (!array.is_array()) {
    fields.Fail(name, "must be an array of token ids");
    return tokens;
  }
  tokens.reserve(array.size());
  for (const Json& entry : array) {
    const auto id = AsInteger(entry, {0, vocabulary - 1});
    if (!id.has_value()) {
      fields.Fail(name, absl::StrCat("must hold only token ids from 0 to ", vocabulary - 1));
      return tokens;
    }
    tokens.push_back(static_cast<TokenId>(*id));
  }
  return tokens;
}

std::variant<CompletionRequest, ApiError> ParseCompletion(const Json& body, bool chat, int32_t vocabulary) {
  Fields fields(body);
  CompletionRequest request;
  request.chat = chat;
  request.model = fields.String("model", kMaxNameBytes);
  if (chat) {
    request.messages = ReadMessages(fields);
  } else {
    ReadPrompt(fields, vocabulary, request);
    request.echo = fields.Bool("echo", false);
  }
  ReadMaxTokens(fields, request);
  ReadMinTokens(fields, request);
  ReadLogprobs(fields, request);
  ReadStop(fields, request);
  ReadSampling(fields, vocabulary, request);
  ReadChoices(fields, request);
  ReadStreamOptions(fields, request);
  request.ignore_eos = fields.Bool("ignore_eos", false);
  if (const Json* ids = fields.Find("stop_token_ids"); ids != nullptr) {
    request.stop_token_ids = ReadTokens(fields, "stop_token_ids", *ids, vocabulary);
    if (request.stop_token_ids.size() > kMaxStopTokens) {
      fields.Fail("stop_token_ids", absl::StrCat("must have at most ", kMaxStopTokens, " ids"));
    }
  }
  fields.String("user", 64 << 10);
  request.priority = static_cast<uint32_t>(fields.Integer("priority", {0, kMaxPriority}).value_or(0));
  request.cache_salt = fields.String("cache_salt", kMaxSaltBytes);
  RefuseUnsupported(fields);
  if (fields.error().has_value()) return *fields.error();
  return request;
}

}  // namespace cofferdam::gateway
