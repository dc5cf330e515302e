// From generated tokens to the text that a client sees.
#ifndef COFFERDAM_GATEWAY_OUTPUT_TEXT_H_
#define COFFERDAM_GATEWAY_OUTPUT_TEXT_H_

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
  std::string Push(TokenId token) { return stops_.Feed(characters_.Feed(tokenizer_.TokenBytes(token, false))); }
  // Returns what was held back. Call it once, at the end.
  std::string Finish() {
    const std::string shown = stops_.Feed(characters_.Finish());
    return shown + stops_.Finish();
  }
  // A stop string was found; there is nothing more to show.
  bool stopped() const { return stops_.stopped(); }

 private:
  const text::Tokenizer& tokenizer_;
  text::Utf8Stream characters_;
  text::StopMatcher stops_;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_OUTPUT_TEXT_H_
