// OpenAI's answers as JSON text, whole or in server-sent events.
#ifndef COFFERDAM_GATEWAY_OPENAI_RESPONSE_H_
#define COFFERDAM_GATEWAY_OPENAI_RESPONSE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "gateway/api_error.h"

namespace cofferdam::gateway {

struct Usage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  std::optional<uint64_t> cached_tokens{};  // of the prompt; none: not said
};

// Writes the answers of one request. What stays the same in every chunk is prepared once. Not thread-safe.
class ResponseWriter {
 public:
  struct Header {
    bool chat = false;
    bool include_usage = false;  // chunks then carry "usage": null, as OpenAI does
    std::string id;              // "chatcmpl-..." or "cmpl-..."
    std::string model;
    std::string fingerprint;  // "system_fingerprint"
    int64_t created = 0;      // seconds since 1970
  };
  explicit ResponseWriter(const Header& header);

  // One choice of a whole answer.
  struct WholeChoice {
    std::string text;
    std::string reason;
    std::string logprobs = "null";  // JSON
  };

  // Events of a stream, each "data: ...\n\n".
  std::string FirstChunk(size_t choice) const;  // the role, in a chat; empty otherwise
  // `logprobs`: JSON.
  std::string TextChunk(size_t choice, std::string_view text, std::string_view logprobs = "null") const;
  std::string FinishChunk(size_t choice, std::string_view reason) const;
  std::string UsageChunk(const Usage& usage) const;
  static std::string ErrorEvent(const ApiError& error);
  // A comment, which clients of server-sent events pass over. It is a block of its own, so that a client that cuts the
  // stream at empty lines still finds Done at the start of one.
  static std::string VerifiedComment(const std::string& counts) { return ": cofferdam-verified " + counts + "\n\n"; }
  static std::string Done() { return "data: [DONE]\n\n"; }

  // The whole answer.
  std::string Whole(std::span<const WholeChoice> choices, const Usage& usage) const;

 private:
  std::string Chunk(std::string_view choices, std::string_view usage) const;

  Header header_;
  std::string chunk_start_;  // up to the value of "choices"
  std::string whole_start_;
};

// `text` as a JSON string, with quotes.
std::string JsonString(std::string_view text);

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_OPENAI_RESPONSE_H_
