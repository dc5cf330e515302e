#include "model/sampler.h"

#include <llama.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace cofferdam::model {
namespace {

struct FreeSampler {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using Filter = std::unique_ptr<llama_sampler, FreeSampler>;

absl::Status OutOfRange(std::string_view name, double value, std::string_view range) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(name), " is ", value, "; it must be ", std::string(range)));
}

absl::Status CheckParams(const SamplingParams& p, uint32_t vocabulary) {
  // Written so that NaN fails every test.
  if (!(p.temperature >= 0.0f && p.temperature <= 100.0f)) return OutOfRange("temperature", p.temperature, "0 to 100");
  if (!(p.top_p > 0.0f && p.top_p <= 1.0f)) return OutOfRange("top_p", p.top_p, "more than 0, at most 1");
  if (!(p.min_p >= 0.0f && p.min_p <= 1.0f)) return OutOfRange("min_p", p.min_p, "0 to 1");
  if (!(p.repetition_penalty > 0.0f && p.repetition_penalty <= 100.0f)) {
    return OutOfRange("repetition_penalty", p.repetition_penalty, "more than 0, at most 100");
  }
  if (!(std::abs(p.presence_penalty) <= 100.0f)) return OutOfRange("presence_penalty", p.presence_penalty, "-100 to 100");
  if (!(std::abs(p.frequency_penalty) <= 100.0f)) return OutOfRange("frequency_penalty", p.frequency_penalty, "-100 to 100");
  if (p.top_k < 0) return OutOfRange("top_k", p.top_k, "0 or more");
  if (p.logit_bias.size() > kMaxLogitBias) {
    return OutOfRange("the number of logit_bias entries", static_cast<double>(p.logit_bias.size()),
                      absl::StrCat("at most ", kMaxLogitBias));
  }
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0 || static_cast<uint32_t>(token) >= vocabulary)
      return OutOfRange("a logit_bias token", token, "in the vocabulary");
    if (!std::isfinite(bias)) return OutOfRange("a logit_bias", bias, "finite");
  }
  if (vocabulary == 0) return OutOfRange("the vocabulary", 0, "1 or more");
  return absl::OkStatus();
}

// Uniform in [0, 1), a function of seed and position alone.
double Uniform(uint64_t seed, uint64_t position) {
  std::array<uint8_t, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(position >> (8 * i));
  return static_cast<double>(XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed) >> 11) * 0x1.0p-53;
}

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

float Real(float logit) { return std::isnan(logit) ? kImpossible : logit; }

TokenId ArgMax(const std::vector<llama_token_data>& candidates) {
  const llama_token_data* best = &candidates.front();
  for (const llama_token_data& candidate : candidates) {
    if (candidate.logit > best->logit || (candidate.logit == best->logit && candidate.id < best->id)) best = &candidate;
  }
  return best->id;
}

// From logits to the natural logarithms of their softmax.
class Normaliser {
 public:
  explicit Normaliser(std::span<const float> logits) {
    for (const float logit : logits) top_ = std::max(top_, logit);
    double sum = 0;
    for (const float logit : logits) {
      if (!std::isnan(logit)) sum += std::exp(static_cast<double>(logit) - static_cast<double>(top_));
    }
    log_sum_ = std::log(sum);
  }
  float Of(float logit) const { return static_cast<float>(static_cast<double>(logit) - static_cast<double>(top_) - log_sum_); }

 private:
  float top_ = kImpossible;
  double log_sum_ = 0;
};

}  // namespace

struct Sampler::State {
  State(SamplingParams p, uint32_t v) : params(std::move(p)), vocabulary(v), candidates(v) {}

  void Fill(std::span<const float> logits, std::span<const TokenId> banned);
  void Penalise();
  TokenId Draw(llama_token_data_array& kept, uint64_t position) const;

  const SamplingParams params;
  const uint32_t vocabulary;
  std::vector<Filter> filters;  // in the order in which they apply
  std::deque<TokenId> window;   // the last kPenaltyWindow accepted tokens
  absl::flat_hash_map<TokenId, int> counts;
  std::vector<llama_token_data> candidates;
};

void Sampler::State::Fill(std::span<const float> logits, std::span<const TokenId> banned) {
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates[i] = {.id = static_cast<llama_token>(i), .logit = Real(logits[i]), .p = 0.0f};
  }
  for (const auto& [token, bias] : params.logit_bias) candidates[static_cast<size_t>(token)].logit += bias;
  for (const TokenId token : banned) {
    if (token >= 0 && static_cast<uint32_t>(token) < vocabulary) candidates[static_cast<size_t>(token)].logit = kImpossible;
  }
}

// As llama.cpp's penalties sampler, but over the few tokens that were accepted instead of the whole vocabulary.
// REQUIRES: candidates[i] is token i.
void Sampler::State::Penalise() {
  for (const auto& [token, count] : counts) {
    float& logit = candidates[static_cast<size_t>(token)].logit;
    logit = logit <= 0.0f ? logit * params.repetition_penalty : logit / params.repetition_penalty;
    logit -= static_cast<float>(count) * params.frequency_penalty + params.presence_penalty;
  }
}

// Inverse transform over the candidates in the order of their ids.
TokenId Sampler::State::Draw(llama_token_data_array& kept, uint64_t position) const {
  const std::span<llama_token_data> left(kept.data, kept.size);
  if (left.size() < candidates.size()) std::ranges::sort(left, {}, &llama_token_data::id);
  float top = kImpossible;
  for (const llama_token_data& candidate : left) top = std::max(top, candidate.logit);
  double total = 0;
  for (llama_token_data& candidate : left) total += (candidate.p = std::exp(candidate.logit - top));
  const double wanted = Uniform(params.seed, position) * total;
  double sum = 0;
  TokenId last = left.front().id;
  for (const llama_token_data& candidate : left) {
    if (candidate.p <= 0.0f) continue;
    sum += candidate.p;
    last = candidate.id;
    if (sum > wanted) break;
  }
  return last;
}

Sampler::Sampler(std::unique_ptr<State> state) : state_(std::move(state)) {}
Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;
const SamplingParams& Sampler::params() const { return state_->params; }

absl::StatusOr<Sampler> Sampler::Create(SamplingParams params, uint32_t vocabulary) {
  if (auto status = CheckParams(params, vocabulary); !status.ok()) return status;
  auto state = std::make_unique<State>(std::move(params), vocabulary);
  const SamplingParams& p = state->params;
  if (p.temperature > 0.0f) {
    if (p.top_k > 0) state->filters.emplace_back(llama_sampler_init_top_k(p.top_k));
    if (p.top_p < 1.0f) state->filters.emplace_back(llama_sampler_init_top_p(p.top_p, 1));
    if (p.min_p > 0.0f) state->filters.emplace_back(llama_sampler_init_min_p(p.min_p, 1));
    state->filters.emplace_back(llama_sampler_init_temp(p.temperature));
  }
  return Sampler(std::move(state));
}

void Sampler::Accept(TokenId token) {
  if (token < 0 || static_cast<uint32_t>(token) >= state_->vocabulary) return;
  state_->window.push_back(token);
  ++state_->counts[token];
  if (state_->window.size() <= kPenaltyWindow) return;
  const auto oldest = state_->counts.find(state_->window.front());
  if (--oldest->second == 0) state_->counts.erase(oldest);
  state_->window.pop_front();
}

TokenId Sampler::Sample(std::span<const float> logits, uint64_t position, float* logprob, std::span<const TokenId> banned) {
  State& s = *state_;
  CD_CHECK(logits.size() == s.vocabulary, "a sampler gets the logits of its whole vocabulary");
  s.Fill(logits, banned);
  const SamplingParams& p = s.params;
  if (p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f) s.Penalise();
  TokenId token = ArgMax(s.candidates);
  // Nothing can be drawn from logits that are all minus infinity, or infinite; the most likely token stands.
  if (p.temperature > 0.0f && std::isfinite(s.candidates[static_cast<size_t>(token)].logit)) {
    llama_token_data_array kept{.data = s.candidates.data(), .size = s.candidates.size(), .selected = -1, .sorted = false};
    for (const Filter& filter : s.filters) llama_sampler_apply(filter.get(), &kept);
    token = s.Draw(kept, position);
  }
  if (logprob != nullptr) *logprob = LogProbability(logits, token);
  return token;
}

float LogProbability(std::span<const float> logits, TokenId token) {
  return Normaliser(logits).Of(logits[static_cast<size_t>(token)]);
}

std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, size_t count) {
  std::vector<TokenLogprob> top;
  if (count == 0) return top;
  const auto before = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
  };
  // A heap of the best so far, the worst of them in front; ids only rise, so that an equal logit never displaces one.
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = Real(logits[i]);
    if (top.size() == count) {
      if (!(logit > top.front().logprob)) continue;
      std::ranges::pop_heap(top, before);
      top.pop_back();
    }
    top.push_back({.token = static_cast<TokenId>(i), .logprob = logit});
    std::ranges::push_heap(top, before);
  }
  std::ranges::sort(top, before);
  const Normaliser normaliser(logits);
  for (TokenLogprob& entry : top) entry.logprob = normaliser.Of(entry.logprob);
  return top;
}

}  // namespace cofferdam::model
