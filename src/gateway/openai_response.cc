#include "gateway/openai_response.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace cofferdam::gateway {
namespace {

std::string Start(const ResponseWriter::Header& header, std::string_view object) {
  return absl::StrCat("{\"id\":", JsonString(header.id), ",\"object\":", JsonString(object), ",\"created\":", header.created,
                      ",\"model\":", JsonString(header.model), ",\"system_fingerprint\":", JsonString(header.fingerprint),
                      ",\"choices\":");
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

std::string ResponseWriter::FirstChunk(size_t choice) const {
  if (!header_.chat) return {};
  return Chunk(absl::StrCat("[{\"index\":", choice,
                            ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]"),
               "null");
}

std::string ResponseWriter::TextChunk(size_t choice, std::string_view text, std::string_view logprobs) const {
  const std::string content = JsonString(text);
  return Chunk(absl::StrCat("[{\"index\":", choice, header_.chat ? ",\"delta\":{\"content\":" : ",\"text\":", content,
                            header_.chat ? "}" : "", ",\"logprobs\":", std::string(logprobs), ",\"finish_reason\":null}]"),
               "null");
}

std::string ResponseWriter::FinishChunk(size_t choice, std::string_view reason) const {
  return Chunk(absl::StrCat("[{\"index\":", choice, header_.chat ? ",\"delta\":{}" : ",\"text\":\"\"",
                            ",\"logprobs\":null,\"finish_reason\":", JsonString(reason), "}]"),
               "null");
}

std::string ResponseWriter::UsageChunk(const Usage& usage) const { return Chunk("[]", UsageJson(usage)); }

std::string ResponseWriter::ErrorEvent(const ApiError& error) { return absl::StrCat("data: ", ErrorJson(error), "\n\n"); }

std::string ResponseWriter::Whole(std::span<const WholeChoice> choices, const Usage& usage) const {
  std::string list;
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::string content = JsonString(choices[i].text);
    absl::StrAppend(&list, i == 0 ? "" : ",", "{\"index\":", i);
    if (header_.chat) {
      absl::StrAppend(&list, ",\"message\":{\"role\":\"assistant\",\"content\":", content, ",\"refusal\":null}");
    } else {
      absl::StrAppend(&list, ",\"text\":", content);
    }
    absl::StrAppend(&list, ",\"logprobs\":", choices[i].logprobs, ",\"finish_reason\":", JsonString(choices[i].reason), "}");
  }
  return absl::StrCat(whole_start_, "[", list, "],\"usage\":", UsageJson(usage), "}");
}

}  // namespace cofferdam::gateway
