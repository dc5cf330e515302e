#include "base/error.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace cofferdam {
namespace {

constexpr std::string_view kPayloadUrl = "cofferdam/error-facts";
constexpr size_t kMaxFieldBytes = 256;

bool TakeString(std::string_view& rest, std::string& out) {
  const size_t colon = rest.find(':');
  size_t length = 0;
  if (colon == std::string_view::npos || !absl::SimpleAtoi(absl::string_view(rest.data(), colon), &length) ||
      length > kMaxFieldBytes || rest.size() - colon - 1 < length) {
    return false;
  }
  out.assign(rest.substr(colon + 1, length));
  rest.remove_prefix(colon + 1 + length);
  return true;
}

template <typename Int>
bool TakeInt(std::string_view& rest, Int& out) {
  std::string text;
  return TakeString(rest, text) && absl::SimpleAtoi(text, &out);
}

std::string Field(std::string_view text) {
  text = text.substr(0, kMaxFieldBytes);
  return absl::StrCat(text.size(), ":", absl::string_view(text.data(), text.size()));
}

// `whose`: "This model's"; `why`: a sentence on where the limit comes from.
absl::Status ContextExceeded(std::string_view whose, std::string_view why, uint64_t prompt_tokens, uint64_t output_tokens,
                             uint64_t limit_tokens) {
  std::string message =
      absl::StrCat(std::string(whose), " maximum context length is ", limit_tokens, " tokens, but the request needs ",
                   prompt_tokens + output_tokens, " (", prompt_tokens, " in the prompt, ", output_tokens,
                   " to be generated). Shorten the prompt or lower max_tokens. ", std::string(why));
  return WithFacts(absl::InvalidArgumentError(message), {.code = std::string(error_code::kContextLengthExceeded),
                                                         .param = "messages",
                                                         .requested = prompt_tokens + output_tokens,
                                                         .limit = limit_tokens});
}

}  // namespace

std::string SerializeFacts(const ErrorFacts& facts) {
  return absl::StrCat(Field(facts.code), Field(facts.param), Field(std::to_string(facts.requested)),
                      Field(std::to_string(facts.limit)), Field(std::to_string(facts.retry_after_s)));
}

std::optional<ErrorFacts> ParseFacts(std::string_view text) {
  ErrorFacts facts;
  if (!TakeString(text, facts.code) || !TakeString(text, facts.param) || !TakeInt(text, facts.requested) ||
      !TakeInt(text, facts.limit) || !TakeInt(text, facts.retry_after_s) || !text.empty()) {
    return std::nullopt;
  }
  return facts;
}

absl::Status WithFacts(absl::Status status, const ErrorFacts& facts) {
  status.SetPayload(absl::string_view(kPayloadUrl.data(), kPayloadUrl.size()), absl::Cord(SerializeFacts(facts)));
  return status;
}

std::optional<ErrorFacts> FactsOf(const absl::Status& status) {
  const auto payload = status.GetPayload(absl::string_view(kPayloadUrl.data(), kPayloadUrl.size()));
  if (!payload.has_value()) return std::nullopt;
  return ParseFacts(std::string(*payload));
}

absl::Status ContextLengthExceeded(std::string_view who, uint64_t prompt_tokens, uint64_t output_tokens, uint64_t limit_tokens) {
  const std::string why = absl::StrCat("The limit is the ", std::string(who), "'s context, which its measured KV capacity holds.");
  return ContextExceeded("This model's", why, prompt_tokens, output_tokens, limit_tokens);
}

absl::Status KeyContextExceeded(uint64_t prompt_tokens, uint64_t output_tokens, uint64_t limit_tokens) {
  return ContextExceeded("This API key's", "The limit is set by whoever gave out the key.", prompt_tokens, output_tokens,
                         limit_tokens);
}

}  // namespace cofferdam
