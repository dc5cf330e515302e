#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cofferdam::text {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    CD_CHECK(!stop.empty(), "an empty stop string was refused by the parser");
    longest_ = std::max(longest_, stop.size());
  }
}

bool StopMatcher::FindFirst() {
  size_t first_end = std::string::npos;
  size_t start = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (end < first_end || (end == first_end && at < start)) {
      first_end = end;
      start = at;
      matched_ = stop;
    }
  }
  if (first_end == std::string::npos) return false;
  held_.resize(start);
  return true;
}

size_t StopMatcher::OpenStart() const {
  const size_t last = held_.size() - std::min(held_.size(), longest_ - 1);
  for (size_t at = last; at < held_.size(); ++at) {
    const std::string_view rest = std::string_view(held_).substr(at);
    for (const std::string& stop : stops_) {
      if (std::string_view(stop).starts_with(rest)) return at;
    }
  }
  return held_.size();
}

std::string StopMatcher::Feed(std::string_view text) {
  if (stopped_) return {};
  if (stops_.empty()) return std::string(text);
  held_.append(text);
  if (FindFirst()) {
    stopped_ = true;
    return std::exchange(held_, {});
  }
  const size_t open = OpenStart();
  std::string shown = held_.substr(0, open);
  held_.erase(0, open);
  CD_CHECK(held_.size() < longest_, "what is held back is shorter than the longest stop string");
  return shown;
}

std::string StopMatcher::Finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }

}  // namespace cofferdam::text
