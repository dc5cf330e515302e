// Stop strings in a stream of text, wherever the pieces are cut.
#ifndef COFFERDAM_TEXT_STOP_MATCHER_H_
#define COFFERDAM_TEXT_STOP_MATCHER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cofferdam::text {

// Passes text on up to the first stop string and holds back what could still be the start of one. Of several the one
// that is complete first counts, and of those that end together the longest, as if text came byte by byte: what is
// shown does not depend on how the stream was cut. Holds at most the longest stop string less one byte. Not thread-safe;
// one per stream.
class StopMatcher {
 public:
  // REQUIRES: no stop string is empty.
  explicit StopMatcher(std::vector<std::string> stops);

  // Returns text that can be shown now. After a match (`stopped()`) everything further is swallowed.
  std::string Feed(std::string_view text);
  // The stream ended by itself: returns what was held back.
  std::string Finish();
  bool stopped() const { return stopped_; }
  // The stop string that matched. REQUIRES: stopped().
  const std::string& matched() const { return matched_; }

 private:
  // Cuts held_ before the stop string that is complete first. Returns false when there is none.
  bool FindFirst();
  // Where the longest tail of held_ begins that could still become a stop string.
  size_t OpenStart() const;

  std::vector<std::string> stops_;
  size_t longest_ = 0;
  std::string held_;
  bool stopped_ = false;
  std::string matched_;
};

}  // namespace cofferdam::text

#endif  // COFFERDAM_TEXT_STOP_MATCHER_H_
