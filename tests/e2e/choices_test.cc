// Several answers to one prompt (`n`), which share the prompt's whole pages through the prefix cache.
#include <gtest/gtest.h>

#include "e2e/both_modes.h"

namespace cofferdam::e2e {
namespace {

constexpr int kChoices = 4;

class ChoicesOfOnePrompt : public BothModes {
 protected:
  void Start(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"--page-size", "16", "--local-prefill-tokens", "1"};
    if (const auto model = StoriesModel()) arguments.insert(arguments.end(), {"--model", *model});
    arguments.insert(arguments.end(), more.begin(), more.end());
    cluster_.emplace(arguments, GetParam());
    ASSERT_TRUE(cluster_->Start());
  }
  // Of 16 * pages + 5 tokens, other ones for each `salt`.
  static Json Prompt(int pages, int salt) {
    Json tokens = Json::array();
    for (int i = 0; i < 16 * pages + 5; ++i) tokens.push_back(100 + (i * 37 + salt * 101) % 300);
    return tokens;
  }
  static Json Body(const Json& prompt) {
    return {{"prompt", prompt}, {"temperature", 1}, {"seed", 41}, {"max_tokens", 40}, {"ignore_eos", true}};
  }
  // What requests with one choice get with the seeds of the choices.
  std::vector<std::string> OneByOne(Json body) const {
    std::vector<std::string> texts;
    const int seed = body["seed"];
    for (int i = 0; i < kChoices; ++i) {
      body["seed"] = seed + i;
      const Response response = cluster_->Complete(body);
      EXPECT_EQ(response.status, 200) << response.body;
      if (response.status == 200) texts.push_back(response.json()["choices"][0]["text"]);
    }
    return texts;
  }
  static std::vector<std::string> TextsOfWhole(const Response& response) {
    EXPECT_EQ(response.status, 200) << response.body;
    std::vector<std::string> texts;
    if (response.status != 200) return texts;
    const Json json = response.json();
    for (const Json& choice : json["choices"]) {
      EXPECT_EQ(choice["index"], texts.size());
      EXPECT_EQ(choice["finish_reason"], "length");
      texts.push_back(choice["text"]);
    }
    return texts;
  }
  double Found() const { return cluster_->Metric("decode", "prefix_cache_hit_tokens_total"); }
  std::optional<Cluster> cluster_;
};

TEST_P(ChoicesOfOnePrompt, EachIsTheAnswerOfItsSeedAndTheOthersFindThePromptsPages) {
  Start();
  Json body = Body(Prompt(6, 1));
  body["n"] = kChoices;
  const Response whole = cluster_->Complete(body);
  // Nobody had asked this before: what was found, the other choices found.
  EXPECT_EQ(Found(), (kChoices - 1) * 6 * 16);
  const std::vector<std::string> texts = TextsOfWhole(whole);
  EXPECT_EQ(whole.json()["usage"]["prompt_tokens"], 6 * 16 + 5);
  EXPECT_EQ(whole.json()["usage"]["completion_tokens"], kChoices * 40);
  EXPECT_EQ(whole.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);

  EXPECT_EQ(texts, OneByOne(Body(Prompt(6, 1))));
  EXPECT_NE(texts.at(0), texts.at(1));
  Json streamed = body;
  streamed["stream"] = true;
  const Response stream = cluster_->Complete(streamed);
  EXPECT_EQ(http::TextsOf(stream.body), texts);
  EXPECT_EQ(http::EventsOf(stream.body).back(), "[DONE]");
  EXPECT_TRUE(cluster_->NobodyHoldsAPage());
}

TEST_P(ChoicesOfOnePrompt, WithoutTheCacheTheyAreTheSameAnswers) {
  Start({"--no-prefix-cache"});
  Json body = Body(Prompt(6, 1));
  body["n"] = kChoices;
  EXPECT_EQ(TextsOfWhole(cluster_->Complete(body)), OneByOne(Body(Prompt(6, 1))));
  EXPECT_TRUE(cluster_->NobodyHoldsAPage());
}

TEST_P(ChoicesOfOnePrompt, GreedyOnesAreEqual) {
  Start();
  Json body = Body(Prompt(3, 2));
  body["temperature"] = 0;
  body["n"] = 3;
  const std::vector<std::string> texts = TextsOfWhole(cluster_->Complete(body));
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

TEST_P(ChoicesOfOnePrompt, ADisconnectInTheMiddleGivesEveryPageBack) {
  Start();
  Json body = Body(Prompt(3, 3));
  body["n"] = kChoices;
  body["stream"] = true;
  body["max_tokens"] = 400;
  RawClient client(cluster_->port());
  client.Send(http::Post("/v1/completions", body.dump()));
  // A later choice talks, so that all of them run.
  EXPECT_NE(client.ReadUntil("\"index\":3,").find("\"index\":3,"), std::string::npos);
  // A worker's metrics are those of some milliseconds ago.
  EXPECT_TRUE(Eventually([&] { return cluster_->Metric("decode", "kv_tokens_copied_total") > 0; }))
      << "of the prompt's last page, which each of them fills";
  client.Reset();
  EXPECT_TRUE(cluster_->NobodyHoldsAPage());
  EXPECT_EQ(cluster_->Metric("decode", "requests_cancelled_total"), kChoices);
}

INSTANTIATE_TEST_SUITE_P(Modes, ChoicesOfOnePrompt, kBothModes, NameOfMode);

}  // namespace
}  // namespace cofferdam::e2e
