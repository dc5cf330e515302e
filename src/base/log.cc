#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string>

namespace cofferdam::log {

void Init(std::string_view role, std::string_view level, bool json) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>(std::string(role), std::move(sink));
  logger->set_level(spdlog::level::from_str(std::string(level)));
  logger->flush_on(spdlog::level::info);
  logger->set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","role":"%n","level":"%l","message":"%v"})"
                           : "%H:%M:%S.%e %-7n %l: %v");
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace cofferdam::log
