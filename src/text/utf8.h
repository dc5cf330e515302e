// UTF-8 that arrives in pieces: tokens are bytes, and a character may be cut by a token's border.
#ifndef COFFERDAM_TEXT_UTF8_H_
#define COFFERDAM_TEXT_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace cofferdam::text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Well-formed by Unicode's table 3-7: no overlong forms, no surrogates, nothing over U+10FFFF.
bool IsValidUtf8(std::string_view bytes);

// Turns a stream of bytes into a stream of whole characters. The tail of an unfinished character (at most three
// bytes) is held back; each maximal ill-formed part becomes one U+FFFD, as browsers do it. The text that comes out does
// not depend on how the bytes were cut. Not thread-safe; one per stream.
class Utf8Stream {
 public:
  // Returns the characters that are complete with `bytes`.
  std::string Feed(std::string_view bytes);
  // Returns what is left (nothing or one U+FFFD) and starts anew.
  std::string Finish();
  size_t held_bytes() const { return held_.size(); }

 private:
  std::string held_;  // a proper prefix of a well-formed character: at most 3 bytes
};

}  // namespace cofferdam::text

#endif  // COFFERDAM_TEXT_UTF8_H_
