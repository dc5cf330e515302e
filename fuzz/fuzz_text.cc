// Streams of text that are cut anywhere: UTF-8 and stop strings. What comes out does not depend on the cuts.
#include <string>
#include <vector>

#include "fuzz.h"
#include "text/stop_matcher.h"
#include "text/utf8.h"

namespace cofferdam::text {
namespace {

// Feeds `bytes` in pieces whose sizes `cuts` says, in turn.
template <typename Stream>
std::string InPieces(Stream& stream, std::string_view bytes, std::string_view cuts) {
  std::string out;
  for (size_t i = 0; !bytes.empty(); ++i) {
    const size_t size = cuts.empty() ? bytes.size() : size_t{1} + static_cast<uint8_t>(cuts[i % cuts.size()]) % 8;
    out += stream.Feed(bytes.substr(0, size));
    bytes.remove_prefix(std::min(size, bytes.size()));
  }
  return out + stream.Finish();
}

void CheckUtf8(std::string_view bytes, std::string_view cuts) {
  Utf8Stream whole, cut;
  const std::string at_once = InPieces(whole, bytes, {}), in_pieces = InPieces(cut, bytes, cuts);
  CD_CHECK(at_once == in_pieces, "text does not depend on how its bytes were cut");
  CD_CHECK(IsValidUtf8(at_once), "what comes out is UTF-8");
  CD_CHECK(IsValidUtf8(bytes) == (at_once == bytes), "UTF-8 stays as it is, and nothing else does");
  CD_CHECK(whole.held_bytes() == 0 && cut.held_bytes() == 0, "nothing is held back behind the end");
}

// Where the text ends: before the stop string that is complete first; of those that end together, before the longest.
std::string Expected(std::string_view text, const std::vector<std::string>& stops, bool* stopped) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest == 0) continue;
    *stopped = true;
    return std::string(text.substr(0, end - longest));
  }
  *stopped = false;
  return std::string(text);
}

void CheckStops(std::string_view text, std::string_view cuts, const std::vector<std::string>& stops) {
  StopMatcher matcher(stops);
  const std::string shown = InPieces(matcher, text, cuts);
  bool stopped = false;
  CD_CHECK(shown == Expected(text, stops, &stopped), "what is shown ends before the first stop string, wherever the text is cut");
  CD_CHECK(matcher.stopped() == stopped, "who was stopped says so");
}

}  // namespace
}  // namespace cofferdam::text

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cofferdam::fuzz::Input input(data, size);
  const std::string_view cuts = input.Text(input.Byte() % 4);
  std::vector<std::string> stops;
  for (int left = input.Byte() % 4; left > 0; --left) {
    std::string stop(input.Text(size_t{1} + input.Byte() % 6));
    if (!stop.empty()) stops.push_back(std::move(stop));
  }
  const std::string_view text = input.Text(512);
  cofferdam::text::CheckUtf8(text, cuts);
  cofferdam::text::CheckStops(text, cuts, stops);
  return 0;
}
