// From generated tokens to the text that a client sees.
#ifndef COFFERDAM_GATEWAY_OUTPUT_TEXT_H_
#define COFFERDAM_GATEWAY_OUTPUT_TEXT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "text/stop_matcher.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace cofferdam::gateway {

// Whole characters up to the first stop string. Not thread-safe; one per request.
class OutputText {
 public:
  // `tokenizer` must outlive this.
  OutputText(const text::Tokenizer& tokenizer, std::vector<std::string> stops) : tokenizer_(tokenizer), stops_(std::move(stops)) {}

  // Returns what can be shown now; often nothing.
  std::string Push(TokenId token) { return Show(stops_.Feed(Read(token))); }
  // The same for a token that no stop string may begin in, nor end. REQUIRES: none was pushed before.
  std::string PushUnstoppable(TokenId token) { return Show(Read(token)); }
  // Returns what was held back. Call it once, at the end.
  std::string Finish() {
    const std::string shown = stops_.Feed(characters_.Finish());
    return Show(shown + stops_.Finish());
  }
  // A stop string was found; there is nothing more to show.
  bool stopped() const { return stops_.stopped(); }

  // Of the text, were no stop string in it: how many characters are complete, and where the last token ends, in bytes; the
  // parts of a character that is not complete count.
  uint64_t characters() const { return complete_characters_; }
  uint64_t end() const { return complete_bytes_ + characters_.held_bytes(); }
  // How many bytes have been shown.
  uint64_t shown() const { return shown_; }

 private:
  std::string Read(TokenId token) {
    std::string text = characters_.Feed(tokenizer_.TokenBytes(token, false));
    complete_bytes_ += text.size();
    for (const char c : text) complete_characters_ += (static_cast<unsigned char>(c) & 0xC0u) != 0x80u ? 1 : 0;
    return text;
  }
  std::string Show(std::string text) {
    shown_ += text.size();
    return text;
  }

  const text::Tokenizer& tokenizer_;
  text::Utf8Stream characters_;
  text::StopMatcher stops_;
  uint64_t complete_bytes_ = 0, complete_characters_ = 0, shown_ = 0;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_OUTPUT_TEXT_H_
