// Errors that reach a client unchanged through every process: a status plus the facts behind it.
//
// The facts travel as a payload of the absl::Status, and between processes as gRPC error details, so that the code
// and both numbers of a refusal arrive as the worker that refused wrote them.
#ifndef COFFERDAM_BASE_ERROR_H_
#define COFFERDAM_BASE_ERROR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace cofferdam {

// What a client is told beside the message. `code` is OpenAI's error code ("context_length_exceeded").
struct ErrorFacts {
  std::string code{};
  std::string param{};         // the request field at fault, or empty
  uint64_t requested = 0;      // e.g. tokens asked for; 0 when it has no meaning
  uint64_t limit = 0;          // e.g. tokens that fit
  uint32_t retry_after_s = 0;  // 0: no advice

  friend bool operator==(const ErrorFacts&, const ErrorFacts&) = default;
};

namespace error_code {
inline constexpr std::string_view kContextLengthExceeded = "context_length_exceeded";
inline constexpr std::string_view kQueueFull = "queue_full";
inline constexpr std::string_view kRateLimit = "rate_limit_exceeded";
inline constexpr std::string_view kNoWorker = "no_worker_available";
inline constexpr std::string_view kLayoutMismatch = "layout_mismatch";
inline constexpr std::string_view kIntegrity = "kv_integrity_violation";
}  // namespace error_code

absl::Status WithFacts(absl::Status status, const ErrorFacts& facts);
// None when the status carries no facts or they do not parse.
std::optional<ErrorFacts> FactsOf(const absl::Status& status);

// One compact line for transport, and back; any string parses or gives none. Fields are length-prefixed.
std::string SerializeFacts(const ErrorFacts& facts);
std::optional<ErrorFacts> ParseFacts(std::string_view text);

// 400 context_length_exceeded with both numbers in the message. `who` is the role whose limit it is.
absl::Status ContextLengthExceeded(std::string_view who, uint64_t prompt_tokens, uint64_t output_tokens, uint64_t limit_tokens);

// The same for a limit that belongs to the client's API key.
absl::Status KeyContextExceeded(uint64_t prompt_tokens, uint64_t output_tokens, uint64_t limit_tokens);

}  // namespace cofferdam

#endif  // COFFERDAM_BASE_ERROR_H_
