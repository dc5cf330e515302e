// The answers that one request asked for, each of them generated for itself.
#ifndef COFFERDAM_GATEWAY_CHOICES_H_
#define COFFERDAM_GATEWAY_CHOICES_H_

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "gateway/api_error.h"
#include "gateway/generation.h"
#include "gateway/logprobs.h"
#include "gateway/output_text.h"
#include "gateway/service.h"
#include "gateway/verified_pages.h"
#include "gateway/wake.h"

namespace cofferdam::gateway {

// The first choice starts at once. The others start with its first token: by then the whole pages of the prompt are sealed
// and lie in the cache of its decode worker, which the others are sent to as well. They compute the last, partial page.
// One choice's failure is the request's: the others are cancelled.
// Nothing is read ahead of the caller: a slow client holds back every choice's worker.
// Not thread-safe: everything happens on `strand`.
class Choices {
 public:
  struct Plan {
    v1::GenerateRequest request;              // of the first choice; lacks only the attempt
    std::unordered_set<TokenId> stop_tokens;  // these end a choice and are no text
    std::vector<std::string> stops;
    uint32_t count = 1;
    bool logprobs = false;  // steps carry them
    bool seeded = false;    // choice i has the seed of the first plus i; else each draws its own
  };
  // What one event of one choice adds to the answer.
  struct Step {
    enum class Kind { kAccepted, kText, kOver, kFailed, kGone };
    Kind kind = Kind::kGone;
    size_t choice = 0;
    std::string text;                           // kText and kOver; may be empty
    std::vector<LogprobQueue::Entry> logprobs;  // of the tokens whose text ends in `text`
    ApiError error;                             // kFailed
  };

  // `service` must outlive this.
  Choices(Service& service, const boost::asio::any_io_executor& strand, Plan plan);
  Choices(const Choices&) = delete;
  Choices& operator=(const Choices&) = delete;

  // The next step of any choice, in turn where several have one. The first is the first choice's kAccepted, unless that
  // fails. Not to be called after kFailed or kGone, nor when all_over().
  boost::asio::awaitable<Step> Next();
  // The same if it is there already.
  std::optional<Step> TryNext();
  // The client is gone: every stream is aborted at once, and Next returns kGone.
  void Cancel();

  bool all_over() const { return over_ == plan_.count; }
  // "stop" or "length"; empty before the choice is over.
  const std::string& finish_reason(size_t choice) const { return choices_.at(choice).finish_reason; }
  size_t generated() const { return generated_; }  // tokens, over all choices
  // Of the prompt, by the first choice: what was found before this request.
  uint64_t cached_tokens() const { return choices_.front().generation.cached_tokens(); }
  VerifiedPages verified() const;  // summed over the choices

 private:
  struct Choice {
    Choice(Service& service, Generation::Setting setting, v1::GenerateRequest request, std::vector<std::string> stops)
        : generation(service, std::move(setting), std::move(request)), output(*service.tokenizer, std::move(stops)) {}
    Generation generation;
    OutputText output;
    LogprobQueue logprobs;
    std::string finish_reason;
    bool over() const { return !finish_reason.empty(); }
  };

  void StartOthers();
  v1::GenerateRequest RequestOf(uint32_t choice) const;  // but the first
  Step Take(size_t index, Generation::Event event);
  void TakeToken(Choice& choice, TokenLogprobs token, Step& step);
  void End(Choice& choice, const char* reason, Step& step);
  std::chrono::steady_clock::duration LongestSleep() const;

  Service& service_;
  const boost::asio::any_io_executor strand_;
  Plan plan_;
  const size_t min_tokens_;
  Wake wake_;                   // any choice's; before the choices, which point to it
  std::deque<Choice> choices_;  // they do not move: calls point into them
  size_t turn_ = 0;             // who is asked first
  size_t over_ = 0;
  size_t generated_ = 0;
  bool cancelled_ = false;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_CHOICES_H_
