// Structured process logs on stderr. Never pass prompt text, tokens or keys.
#ifndef COFFERDAM_BASE_LOG_H_
#define COFFERDAM_BASE_LOG_H_

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

namespace cofferdam::log {

// Sets up the process's logger once: `role` (gateway, prefill, decode, up) stands in every line. Not thread-safe;
// call it before threads start. `json` writes one JSON object a line.
void Init(std::string_view role, std::string_view level, bool json);

// `text` as the inside of a JSON string.
std::string EscapeJson(std::string_view text);

using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;

}  // namespace cofferdam::log

#endif  // COFFERDAM_BASE_LOG_H_
