// One request for a completion, from its body to the last byte of its answer.
#ifndef COFFERDAM_GATEWAY_COMPLETION_H_
#define COFFERDAM_GATEWAY_COMPLETION_H_

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gateway/choices.h"
#include "gateway/client.h"
#include "gateway/http_message.h"
#include "gateway/openai_request.h"
#include "gateway/openai_response.h"
#include "gateway/service.h"

namespace cofferdam::gateway {

inline constexpr int kClientGone = 499;  // for logs and metrics: nobody was there to be told

// Not thread-safe: it runs on the client's strand, except that long prompts are tokenized on the text pool. `service` and
// `client` must outlive it.
class Completion {
 public:
  // What is known of the request before its body.
  struct Head {
    std::shared_ptr<const Grant> grant;  // of the request's key
    bool chat = false;
    std::optional<std::string> verify;  // HttpRequest::verify
  };
  Completion(Service& service, Client& client, Framing framing, Head head);
  ~Completion() { client_.ForgetWatch(); }
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  struct Outcome {
    int status = 500;         // what the client got, or kClientGone
    bool keep_alive = false;  // another request may follow on this connection
  };
  // Answers the request. `share` is the body's part of the quota, given back once the body is parsed.
  boost::asio::awaitable<Outcome> Run(std::string body, Quota::Share share);

 private:
  using Time = std::chrono::steady_clock::time_point;
  using Step = Choices::Step;

  boost::asio::awaitable<Outcome> Answer(std::string body, Quota::Share share);
  // Body to tokens. None on success.
  boost::asio::awaitable<std::optional<ApiError>> Prepare(std::string body);
  std::optional<ApiError> Parse(const std::string& body);
  std::optional<ApiError> TokenizePrompt();
  // The gateway's own admission: I11, by the smallest context of the workers in use, and the limits of the key.
  std::optional<ApiError> Admit();
  // How long the answer may be. Errors: 400 context_length_exceeded.
  std::optional<ApiError> JudgeLength(const Fleet& fleet);
  Choices::Plan PlanOfChoices() const;
  // Before the last bytes are written: whoever has read an answer to its end may ask for the next.
  void GiveBack();
  boost::asio::awaitable<Outcome> Reply(HttpReply reply);
  boost::asio::awaitable<Outcome> ReplyError(ApiError error);
  boost::asio::awaitable<Outcome> Whole();
  boost::asio::awaitable<Outcome> Stream();
  bool all_over() const { return choices_ != nullptr && choices_->all_over(); }
  // Appends the server-sent events that follow from `step`.
  void Render(const ResponseWriter& writer, const Step& step, std::string& out) const;
  // What a stream begins with: roles and echoes.
  std::string FirstEvents(const ResponseWriter& writer) const;
  void Note(const Step& step);
  ResponseWriter Writer() const;
  Usage UsageSoFar() const;
  std::string EchoText() const;
  // Counts the tokens that came since the last call on the key.
  void Charge();
  // The headers of an answer with status 200 that depend on the request.
  HttpHeaders AnswerHeaders() const;
  void Finish(const Outcome& outcome);

  Service& service_;
  Client& client_;
  Framing framing_;
  const std::shared_ptr<const Grant> grant_;
  const bool chat_;
  const std::optional<std::string> verify_;
  const std::string id_;
  const Time started_ = std::chrono::steady_clock::now();

  CompletionRequest request_;
  std::vector<TokenId> prompt_;
  uint32_t max_tokens_ = 0;
  Quota::Share in_flight_;
  Quota::Share queued_;
  KeyShare key_share_;
  uint64_t charged_ = 0;              // tokens of the answer
  std::unique_ptr<Choices> choices_;  // none before the request was admitted
  std::string error_code_;
  std::optional<Time> first_token_;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_COMPLETION_H_
