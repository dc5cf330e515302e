#include "gateway/openai_response.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace cofferdam::gateway {
namespace {

std::string Start(const ResponseWriter::Header& header, std::string_view object) {
  return absl::StrCat("{\"id\":", JsonString(header.id), ",\"object\":", JsonString(object), ",\"created\":", header.created,
                      ",\"model\":", JsonString(header.model), ",\"choices\":");
}

std::string UsageJson(const Usage& usage) {
  std::string details;
  if (usage.cached_tokens.has_value())
    details = absl::StrCat(",\"prompt_tokens_details\":{\"cached_tokens\":", *usage.cached_tokens, "}");
  return absl::StrCat("{\"prompt_tokens\":", usage.prompt_tokens, ",\"completion_tokens\":", usage.completion_tokens,
                      ",\"total_tokens\":", usage.prompt_tokens + usage.completion_tokens, details, "}");
}

}  // namespace

std::string JsonString(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ResponseWriter::ResponseWriter(const Header& header)
    : header_(header),
      chunk_start_("data: " + Start(header, header.chat ? "chat.completion.chunk" : "text_completion")),
      whole_start_(Start(header, header.chat ? "chat.completion" : "text_completion")) {}

std::string ResponseWriter::Chunk(std::string_view choices, std::string_view usage) const {
  std::string out = chunk_start_;
  out += choices;
  if (header_.include_usage) {
    out += ",\"usage\":";
    out += usage;
  }
  out += "}\n\n";
  return out;
}

std::string ResponseWriter::FirstChunk() const {
  if (!header_.chat) return {};
  return Chunk(R"([{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}])", "null");
}

std::string ResponseWriter::TextChunk(std::string_view text) const {
  const std::string content = JsonString(text);
  return Chunk(header_.chat
                   ? absl::StrCat("[{\"index\":0,\"delta\":{\"content\":", content, "},\"logprobs\":null,\"finish_reason\":null}]")
                   : absl::StrCat("[{\"index\":0,\"text\":", content, ",\"logprobs\":null,\"finish_reason\":null}]"),
               "null");
}

std::string ResponseWriter::FinishChunk(std::string_view reason) const {
  const std::string quoted = JsonString(reason);
  return Chunk(header_.chat ? absl::StrCat("[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":", quoted, "}]")
                            : absl::StrCat("[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":", quoted, "}]"),
               "null");
}

std::string ResponseWriter::UsageChunk(const Usage& usage) const { return Chunk("[]", UsageJson(usage)); }

std::string ResponseWriter::ErrorEvent(const ApiError& error) { return absl::StrCat("data: ", ErrorJson(error), "\n\n"); }

std::string ResponseWriter::Whole(std::string_view text, std::string_view reason, const Usage& usage) const {
  const std::string content = JsonString(text);
  const std::string choice =
      header_.chat ? absl::StrCat("{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":", content, ",\"refusal\":null}")
                   : absl::StrCat("{\"index\":0,\"text\":", content);
  return absl::StrCat(whole_start_, "[", choice, ",\"logprobs\":null,\"finish_reason\":", JsonString(reason),
                      "}],\"usage\":", UsageJson(usage), "}");
}

}  // namespace cofferdam::gateway
