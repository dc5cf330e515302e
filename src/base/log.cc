#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string>
#include <utility>

namespace cofferdam::log {

std::string EscapeJson(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      escaped += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      escaped += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      escaped += c;
    }
  }
  return escaped;
}

namespace {

// The message as the inside of a JSON string.
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string escaped = EscapeJson({message.payload.data(), message.payload.size()});
    out.append(escaped.data(), escaped.data() + escaped.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonMessage>(); }
};

}  // namespace

void Init(std::string_view role, std::string_view level, bool json) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>(std::string(role), std::move(sink));
  logger->set_level(spdlog::level::from_str(std::string(level)));
  logger->flush_on(spdlog::level::info);
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<JsonMessage>('*');
  formatter->set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","role":"%n","level":"%l","message":"%*"})"
                              : "%H:%M:%S.%e %-7n %l: %v");
  logger->set_formatter(std::move(formatter));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace cofferdam::log
