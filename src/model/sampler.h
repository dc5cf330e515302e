// Chooses the next token from logits. What is drawn is a function of the parameters, the accepted tokens, the logits,
// the seed and the position alone: no state of a random generator exists that a retry could lose.
#ifndef COFFERDAM_MODEL_SAMPLER_H_
#define COFFERDAM_MODEL_SAMPLER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/strong_id.h"

namespace cofferdam::model {

struct SamplingParams {
  float temperature = 1.0f;         // 0: the most likely token, the lowest id on a tie
  float top_p = 1.0f;               // 1: off
  float min_p = 0.0f;               // 0: off
  float repetition_penalty = 1.0f;  // 1: off; llama.cpp's meaning
  float presence_penalty = 0.0f;    // 0: off
  float frequency_penalty = 0.0f;   // 0: off
  int top_k = 0;                    // 0: off
  uint64_t seed = 0;
  std::vector<std::pair<TokenId, float>> logit_bias{};
};

// Penalties count the last this many accepted tokens, prompt or output; older ones are forgotten.
inline constexpr int kPenaltyWindow = 64;
inline constexpr size_t kMaxLogitBias = 1024;
inline constexpr uint32_t kMaxTopLogprobs = 20;  // what OpenAI allows

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

// Not thread-safe; one belongs to one sequence.
class Sampler {
 public:
  // Errors: InvalidArgument naming the parameter that is out of range or not finite.
  static absl::StatusOr<Sampler> Create(SamplingParams params, uint32_t vocabulary);

  ~Sampler();
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;

  // Tells the penalties of a token of the prompt or of the output, in order. Tokens outside the vocabulary are ignored.
  void Accept(TokenId token);

  // Returns the token for the output position `position` (0 for the first token after the prompt); does not Accept it.
  // The order is: bias, penalties, then, unless temperature is 0: top_k, top_p, min_p, temperature, draw.
  // `logprob`, unless null, receives the natural logarithm of the token's probability under the raw logits.
  // None of the tokens `banned` is chosen, as long as another can be; those outside the vocabulary are ignored.
  // REQUIRES: logits.size() == vocabulary. Logits that are NaN count as minus infinity.
  TokenId Sample(std::span<const float> logits, uint64_t position, float* logprob, std::span<const TokenId> banned = {});

  const SamplingParams& params() const;

 private:
  struct State;
  explicit Sampler(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// ln of the softmax of `logits` at `token`. REQUIRES: token is an index of logits.
float LogProbability(std::span<const float> logits, TokenId token);

// The `count` tokens of the highest logits, or all if there are fewer, the highest first and the lowest id first on a tie,
// each with the ln of the softmax of `logits` at it. Logits that are NaN count as minus infinity.
std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, size_t count);

}  // namespace cofferdam::model

#endif  // COFFERDAM_MODEL_SAMPLER_H_
