// What a client asks for, read from OpenAI's JSON. Internal fields are never read from a client.
#ifndef COFFERDAM_GATEWAY_OPENAI_REQUEST_H_
#define COFFERDAM_GATEWAY_OPENAI_REQUEST_H_

#include <cofferdam.pb.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/strong_id.h"
#include "gateway/api_error.h"
#include "gateway/fields.h"
#include "text/chat_template.h"

namespace cofferdam::gateway {

struct CompletionRequest {
  bool chat = false;
  std::string model;                                       // empty: the served one
  std::vector<text::ChatMessage> messages;                 // chat
  std::variant<std::string, std::vector<TokenId>> prompt;  // completions
  std::optional<uint32_t> max_tokens;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  uint32_t choices = 1;  // `n`
  bool seeded = false;   // by the client; else sampling has a seed that was drawn
  bool echo = false;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  uint32_t min_tokens = 0;
  bool stream = false;
  bool include_usage = false;
  uint32_t priority = 0;   // served as one that came so many seconds later
  std::string cache_salt;  // narrows the isolation domain
  v1::Sampling sampling;
};

// `vocabulary` is the number of tokens, for ids in the request. Errors: 400 with the field at fault.
std::variant<CompletionRequest, ApiError> ParseCompletion(const Json& body, bool chat, int32_t vocabulary);

// The pieces that /tokenize shares. They record errors in `fields`.
std::vector<text::ChatMessage> ReadMessages(Fields& fields);
std::vector<TokenId> ReadTokens(Fields& fields, std::string_view name, const Json& array, int32_t vocabulary);

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_OPENAI_REQUEST_H_
