#include "tenure/time.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace cofferdam::tenure {
namespace {

std::optional<Micros> Ago(std::string_view text, Micros now) {
  if (text.size() < 2 || text.size() > 8) return std::nullopt;
  if (!std::ranges::all_of(text.substr(0, text.size() - 1), [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  Micros seconds = 0;
  switch (text.back()) {
    case 's':
      seconds = 1;
      break;
    case 'm':
      seconds = 60;
      break;
    case 'h':
      seconds = 3600;
      break;
    case 'd':
      seconds = 86400;
      break;
    default:
      return std::nullopt;
  }
  Micros count = 0;
  if (!absl::SimpleAtoi(absl::string_view(text.data(), text.size() - 1), &count)) return std::nullopt;
  // At most seven digits of days: far from the end of a Micros. What lies before 1970 is "from the beginning".
  return std::max<Micros>(0, now - std::min(now, count * seconds * 1'000'000));
}

std::optional<Micros> At(std::string_view text) {
  const bool date = text.size() == 10;
  if (text.size() < 10 || text.size() > 40 || text[0] < '0' || text[0] > '9') return std::nullopt;
  absl::Time time;
  std::string ignored;
  if (!absl::ParseTime(date ? "%Y-%m-%d" : absl::RFC3339_full, {text.data(), text.size()}, &time, &ignored)) return std::nullopt;
  const Micros micros = absl::ToUnixMicros(time);
  return micros < 0 ? std::nullopt : std::optional(micros);
}

}  // namespace

Micros WallClock() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string FormatTime(Micros time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromUnixMicros(time), absl::UTCTimeZone());
}

absl::StatusOr<Micros> ParseTime(std::string_view text, Micros now) {
  if (const auto ago = Ago(text, now)) return *ago;
  if (const auto at = At(text)) return *at;
  return absl::InvalidArgumentError(absl::StrCat("'", absl::string_view(text.data(), text.size()),
                                                 "' is not a time: give 2026-11-30T12:00:00Z, 2026-11-30, or 90m, 24h, 7d ago"));
}

}  // namespace cofferdam::tenure
