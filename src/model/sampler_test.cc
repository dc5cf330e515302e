#include "model/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace cofferdam::model {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Sampler Make(SamplingParams params, uint32_t vocabulary) {
  auto sampler = Sampler::Create(std::move(params), vocabulary);
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  return *std::move(sampler);
}

TEST(Sampler, GreedyTakesTheLowestIdOnATie) {
  const std::vector<float> logits = {1, 3, 2, 3, 3};
  EXPECT_EQ(Make({.temperature = 0}, 5).Sample(logits, 0, nullptr), 1);
}

TEST(Sampler, GreedyHonoursBiasAndPenalties) {
  const std::vector<float> logits = {1, 3, 2.5f};
  EXPECT_EQ(Make({.temperature = 0, .logit_bias = {{0, 5.0f}}}, 3).Sample(logits, 0, nullptr), 0);
  Sampler sampler = Make({.temperature = 0, .presence_penalty = 1.0f}, 3);
  EXPECT_EQ(sampler.Sample(logits, 0, nullptr), 1);
  sampler.Accept(1);
  EXPECT_EQ(sampler.Sample(logits, 1, nullptr), 2);
}

TEST(Sampler, PenaltiesForgetWhatLeftTheWindow) {
  const std::vector<float> logits = {1, 3, 2.5f};
  Sampler sampler = Make({.temperature = 0, .frequency_penalty = 1.0f}, 3);
  sampler.Accept(1);
  for (int i = 0; i < kPenaltyWindow - 1; ++i) sampler.Accept(0);
  EXPECT_EQ(sampler.Sample(logits, 0, nullptr), 2);
  sampler.Accept(0);
  EXPECT_EQ(sampler.Sample(logits, 0, nullptr), 1);
}

TEST(Sampler, ADrawIsAFunctionOfSeedAndPosition) {
  const std::vector<float> logits(100, 0.0f);
  Sampler a = Make({.seed = 7}, 100), b = Make({.seed = 7}, 100), c = Make({.seed = 8}, 100);
  int same_as_c = 0;
  for (uint64_t position = 0; position < 50; ++position) {
    const TokenId token = a.Sample(logits, position, nullptr);
    EXPECT_EQ(token, a.Sample(logits, position, nullptr));
    EXPECT_EQ(token, b.Sample(logits, position, nullptr));
    same_as_c += token == c.Sample(logits, position, nullptr) ? 1 : 0;
  }
  EXPECT_LT(same_as_c, 10);
}

TEST(Sampler, DrawsFollowTheProbabilities) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  Sampler sampler = Make({.seed = 3}, 3);
  std::map<TokenId, int> seen;
  for (uint64_t position = 0; position < 10000; ++position) ++seen[sampler.Sample(logits, position, nullptr)];
  EXPECT_NEAR(seen[0], 5000, 200);
  EXPECT_NEAR(seen[1], 3000, 200);
  EXPECT_NEAR(seen[2], 2000, 200);
}

TEST(Sampler, FiltersKeepOnlyLikelyTokens) {
  std::vector<float> logits(2000, -2.0f);
  logits[1500] = 5.0f;
  logits[3] = 4.5f;
  logits[900] = 4.0f;
  for (const SamplingParams& params : {SamplingParams{.top_k = 2}, SamplingParams{.top_p = 0.1f}, SamplingParams{.min_p = 0.55f}}) {
    Sampler sampler = Make(params, 2000);
    for (uint64_t position = 0; position < 200; ++position) {
      const TokenId token = sampler.Sample(logits, position, nullptr);
      EXPECT_TRUE(token == 1500 || token == 3) << token;
    }
  }
}

TEST(Sampler, LogProbabilityIsThatOfTheRawLogits) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  float logprob = 0;
  EXPECT_EQ(Make({.temperature = 0, .logit_bias = {{2, 10.0f}}}, 3).Sample(logits, 0, &logprob), 2);
  EXPECT_NEAR(logprob, std::log(0.2f), 1e-5);
}

TEST(Sampler, TheMostLikelyAreThoseOfTheRawLogitsAndTheLowestIdsOnATie) {
  const std::vector<float> logits = {std::log(0.1f), NAN,           std::log(0.4f), -kInfinity, std::log(0.1f),
                                     std::log(0.3f), std::log(0.1f)};
  const std::vector<TokenLogprob> top = TopLogprobs(logits, 4);
  ASSERT_EQ(top.size(), 4u);
  const std::vector<TokenId> expected = {2, 5, 0, 4};
  for (size_t i = 0; i < top.size(); ++i) {
    EXPECT_EQ(top[i].token, expected[i]) << i;
    EXPECT_EQ(top[i].logprob, LogProbability(logits, expected[i])) << i;
  }
  const std::vector<TokenLogprob> all = TopLogprobs(logits, 20);
  ASSERT_EQ(all.size(), logits.size());
  EXPECT_EQ(all.back().token, 3);
  EXPECT_EQ(all.back().logprob, -kInfinity);
  EXPECT_TRUE(TopLogprobs(logits, 0).empty());
}

TEST(Sampler, ABannedTokenIsNotChosenWhileThereIsAnother) {
  const std::vector<float> logits = {1, 3, 2};
  const std::vector<TokenId> likeliest = {1, -5, 99}, all = {0, 1, 2};
  float logprob = 0;
  EXPECT_EQ(Make({.temperature = 0, .logit_bias = {{1, 100.0f}}}, 3).Sample(logits, 0, &logprob, likeliest), 2);
  EXPECT_EQ(logprob, LogProbability(logits, 2));
  Sampler drawing = Make({}, 3);
  for (uint64_t position = 0; position < 200; ++position) EXPECT_NE(drawing.Sample(logits, position, nullptr, likeliest), 1);
  EXPECT_EQ(drawing.Sample(logits, 0, nullptr, all), 0);
}

TEST(Sampler, OddLogitsStillGiveAToken) {
  EXPECT_EQ(Make({}, 3).Sample(std::vector<float>{NAN, NAN, NAN}, 0, nullptr), 0);
  EXPECT_EQ(Make({}, 3).Sample(std::vector<float>{-kInfinity, kInfinity, 0}, 0, nullptr), 1);
  EXPECT_EQ(Make({}, 3).Sample(std::vector<float>{-kInfinity, NAN, 0}, 0, nullptr), 2);
}

TEST(Sampler, RefusesWhatIsOutOfRange) {
  for (const SamplingParams& params :
       {SamplingParams{.temperature = -1}, SamplingParams{.temperature = NAN}, SamplingParams{.top_p = 0},
        SamplingParams{.top_p = 1.5f}, SamplingParams{.min_p = 2}, SamplingParams{.repetition_penalty = 0},
        SamplingParams{.presence_penalty = kInfinity}, SamplingParams{.frequency_penalty = NAN}, SamplingParams{.top_k = -1},
        SamplingParams{.logit_bias = {{3, 1.0f}}}, SamplingParams{.logit_bias = {{-1, 1.0f}}},
        SamplingParams{.logit_bias = {{0, NAN}}}}) {
    EXPECT_EQ(Sampler::Create(params, 3).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace cofferdam::model
