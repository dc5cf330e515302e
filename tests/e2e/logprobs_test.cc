// Log probabilities and the shortest answer, from the HTTP client to the logits and back.
#include <gtest/gtest.h>

#include <cmath>

#include "e2e/both_modes.h"

namespace cofferdam::e2e {
namespace {

class Logprobs : public BothModes {
 protected:
  void SetUp() override {
    cluster_.emplace(std::vector<std::string>{"--page-size", "16", "--local-prefill-tokens", "1"}, GetParam());
    ASSERT_TRUE(cluster_->Start());
  }
  static Json Question() {
    const std::string content =
        "The access code of Anna is 7391. The old boat rested near the harbour. What is the access code of Anna?";
    return {{"messages", {{{"role", "user"}, {"content", content}}}}, {"temperature", 0}, {"max_tokens", 40}};
  }
  static std::string BytesOf(const Json& content) {
    std::string bytes;
    for (const Json& entry : content) {
      for (const Json& byte : entry["bytes"]) bytes += static_cast<char>(byte.get<int>());
    }
    return bytes;
  }
  std::optional<Cluster> cluster_;
};

TEST_P(Logprobs, AreThoseOfTheLogitsTheAnswerWasChosenFrom) {
  Json body = Question();
  body["logprobs"] = true;
  body["top_logprobs"] = 20;
  const Response whole = cluster_->Chat(body);
  ASSERT_EQ(whole.status, 200) << whole.body;
  const Json choice = whole.json()["choices"][0];
  const Json content = choice["logprobs"]["content"];
  ASSERT_GT(content.size(), 0u);
  EXPECT_EQ(BytesOf(content), choice["message"]["content"]);
  for (const Json& entry : content) {
    ASSERT_EQ(entry["top_logprobs"].size(), 20u);
    EXPECT_EQ(entry["top_logprobs"][0]["token"], entry["token"]) << "greedy";
    EXPECT_EQ(entry["top_logprobs"][0]["logprob"], entry["logprob"]);
    double sum = 0, last = 0;
    for (const Json& top : entry["top_logprobs"]) {
      EXPECT_LE(top["logprob"].get<double>(), last);
      last = top["logprob"];
      sum += std::exp(last);
    }
    EXPECT_LE(sum, 1.0001);
    EXPECT_GT(sum, 0.5);
  }
  // The prompt's pages come from the prefix cache now; no bit of a logit depends on that (I13).
  EXPECT_EQ(cluster_->Chat(body).json()["choices"][0]["logprobs"], choice["logprobs"]);
  EXPECT_TRUE(cluster_->NobodyHoldsAPage());
}

TEST_P(Logprobs, AnAnswerIsAsLongAsItMustBe) {
  Json body = Question();
  const Json shorter = cluster_->Chat(body).json();
  ASSERT_EQ(shorter["choices"][0]["finish_reason"], "stop") << shorter;
  const int tokens = shorter["usage"]["completion_tokens"];
  ASSERT_LT(tokens, 38);
  body["min_tokens"] = tokens + 2;
  const Json longer = cluster_->Chat(body).json();
  EXPECT_GE(longer["usage"]["completion_tokens"], tokens + 2) << longer;
  EXPECT_TRUE(longer["choices"][0]["message"]["content"].get<std::string>().starts_with(
      shorter["choices"][0]["message"]["content"].get<std::string>()));
  EXPECT_TRUE(cluster_->NobodyHoldsAPage());
}

INSTANTIATE_TEST_SUITE_P(Modes, Logprobs, kBothModes, NameOfMode);

}  // namespace
}  // namespace cofferdam::e2e
