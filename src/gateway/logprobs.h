// Log probabilities of an answer's tokens: with which piece of text each is shown, and how.
#ifndef COFFERDAM_GATEWAY_LOGPROBS_H_
#define COFFERDAM_GATEWAY_LOGPROBS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/strong_id.h"
#include "text/tokenizer.h"

namespace cofferdam::gateway {

// What a worker tells of one token.
struct TokenLogprobs {
  TokenId token = 0;
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top{};  // the likeliest first
};

// Holds each token back until its text is shown: a token whose text a stop string cuts off is not told of. Positions are
// bytes of the answer's text. Not thread-safe; one per choice.
class LogprobQueue {
 public:
  struct Entry {
    TokenLogprobs token;
    uint64_t offset = 0;  // of the token's first character in the text, in characters
  };

  // `end`: where the token's text ends. REQUIRES: no less than that of the token before.
  void Push(TokenLogprobs token, uint64_t offset, uint64_t end) {
    waiting_.push_back({.entry = {.token = std::move(token), .offset = offset}, .end = end});
  }
  // The tokens whose text ends at or before `shown`.
  std::vector<Entry> TakeShown(uint64_t shown);
  // The text ends at `shown`: also the token of which only a part is shown. The others are dropped.
  std::vector<Entry> TakeLast(uint64_t shown);

 private:
  struct Waiting {
    Entry entry;
    uint64_t end = 0;
  };
  std::deque<Waiting> waiting_;
  uint64_t taken_ = 0;  // where the last token ends that was taken
};

// The value of "logprobs" in an answer, or in a part of one, as OpenAI writes it: for chats {"content": [...]}, for
// completions four arrays. What JSON has no number for, a probability of 0, is -9999, as there. Not thread-safe.
class LogprobsJson {
 public:
  // `tokenizer` must outlive this.
  LogprobsJson(const text::Tokenizer& tokenizer, bool chat) : tokenizer_(tokenizer), chat_(chat) {}
  void Add(const std::vector<LogprobQueue::Entry>& entries);
  size_t bytes() const { return content_.size() + logprobs_.size() + top_.size() + offsets_.size(); }
  std::string Json() const;

 private:
  void AddToChat(const TokenLogprobs& token);
  void AddToCompletion(const LogprobQueue::Entry& entry);

  const text::Tokenizer& tokenizer_;
  const bool chat_;
  // Lists without their brackets. Of a chat only the first.
  std::string content_, logprobs_, top_, offsets_;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_LOGPROBS_H_
