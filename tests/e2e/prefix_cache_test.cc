// The prefix cache as clients see it: later turns start from pages of earlier ones, and nothing is found across tenants.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "e2e/both_modes.h"

namespace cofferdam::e2e {
namespace {

constexpr int kPageTokens = 16;
const std::vector<std::string> kSmallPages{"--page-size", "16", "--chunk-tokens", "64"};

Json Numbers(unsigned seed, int length) {
  std::mt19937 random(seed);
  Json tokens = Json::array();
  for (int i = 0; i < length; ++i) tokens.push_back(100 + random() % 600);
  return tokens;
}

struct Answer {
  std::string text;
  int prompt_tokens = 0;
  int cached_tokens = -1;  // not said
};

Answer Ask(const Cluster& cluster, Json body, const std::string& key = "") {
  body["temperature"] = 0;
  body["ignore_eos"] = true;
  const std::string header = key.empty() ? "" : "Authorization: Bearer " + key + "\r\n";
  const Response response = cluster.Ask(http::Post("/v1/completions", body.dump(), header));
  EXPECT_EQ(response.status, 200) << response.body;
  const Json json = response.json();
  if (response.status != 200) return {};
  Answer answer{.text = json["choices"][0]["text"], .prompt_tokens = json["usage"]["prompt_tokens"]};
  if (json["usage"].contains("prompt_tokens_details"))
    answer.cached_tokens = json["usage"]["prompt_tokens_details"]["cached_tokens"];
  return answer;
}

class PrefixCache : public BothModes {};

TEST_P(PrefixCache, LaterTurnsStartFromPagesOfEarlierOnesAndGetTheSameAnswers) {
  std::vector<std::string> without = kSmallPages;
  without.emplace_back("--no-prefix-cache");
  Cluster cached(kSmallPages, GetParam()), plain(without, GetParam());
  ASSERT_TRUE(cached.Start());
  ASSERT_TRUE(plain.Start());
  Json talk = Numbers(1, 100);
  int before = 0;
  for (int turn = 0; turn < 6; ++turn) {
    const Answer answer = Ask(cached, {{"prompt", talk}, {"max_tokens", 24}});
    const Answer expected = Ask(plain, {{"prompt", talk}, {"max_tokens", 24}});
    EXPECT_EQ(answer.text, expected.text) << turn;
    EXPECT_EQ(expected.cached_tokens, 0);
    EXPECT_EQ(answer.cached_tokens, before / kPageTokens * kPageTokens) << turn;
    // All of this prompt has been computed now, and whole pages of it are there.
    before = static_cast<int>(talk.size());
    for (const Json& token : Numbers(static_cast<unsigned>(10 + turn), 10 + 30 * (turn % 2))) talk.push_back(token);
  }
  EXPECT_GT(cached.Metric("decode", "prefix_cache_hit_tokens_total"), 400);
  if (!cached.colocated()) {
    EXPECT_GT(cached.Metric("prefill", "prefix_cache_hit_tokens_total"), 0) << "it computes only the rest";
  }
  EXPECT_EQ(plain.Metric("decode", "kv_pages", "cached"), 0);
  EXPECT_TRUE(cached.NobodyHoldsAPage());
  EXPECT_TRUE(plain.NobodyHoldsAPage());
  EXPECT_EQ(cached.Ask("GET /health HTTP/1.1\r\nHost: test\r\n\r\n").status, 200) << "every check that is on has run";
}

TEST_P(PrefixCache, I10_TenantsAndSaltsFindOnlyTheirOwn) {
  const std::string keys = std::filesystem::temp_directory_path() / ("cofferdam-keys-" + std::to_string(getpid()));
  std::ofstream(keys) << "sk-first\nsk-second\n";
  std::vector<std::string> arguments = kSmallPages;
  arguments.insert(arguments.end(), {"--api-key-file", keys});
  Cluster cluster(arguments, GetParam());
  ASSERT_TRUE(cluster.Start());
  const Json body{{"prompt", Numbers(1, 100)}, {"max_tokens", 8}};
  Json salted = body;
  salted["cache_salt"] = "pepper";
  const Answer first = Ask(cluster, body, "sk-first");
  EXPECT_EQ(first.cached_tokens, 0);
  for (const auto& [key, request] : {std::pair{"sk-second", body}, std::pair{"sk-first", salted}, std::pair{"sk-second", salted}}) {
    const Answer answer = Ask(cluster, request, key);
    EXPECT_EQ(answer.cached_tokens, 0) << key;
    EXPECT_EQ(answer.text, first.text) << key;
    EXPECT_EQ(Ask(cluster, request, key).cached_tokens, 96) << key;
  }
  EXPECT_EQ(Ask(cluster, body, "sk-first").cached_tokens, 96);
  Json wrong = body;
  wrong["cache_salt"] = 7;
  const std::string bytes = http::Post("/v1/completions", wrong.dump(), "Authorization: Bearer sk-first\r\n");
  EXPECT_EQ(cluster.Ask(bytes).status, 400);
  std::filesystem::remove(keys);
}

TEST_P(PrefixCache, CachedTokensAreNotToldWhereTheyAreHidden) {
  std::vector<std::string> arguments = kSmallPages;
  arguments.emplace_back("--hide-cached-tokens");
  Cluster cluster(arguments, GetParam());
  ASSERT_TRUE(cluster.Start());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Ask(cluster, {{"prompt", Numbers(1, 100)}, {"max_tokens", 2}}).cached_tokens, -1);
  EXPECT_GT(cluster.Metric("decode", "prefix_cache_hit_tokens_total"), 0);
}

// Many conversations over a pool that holds a few of them: pages come and go under load, and every answer is right.
TEST_P(PrefixCache, ConversationsThatPushEachOthersPagesOutAreAllAnsweredRight) {
  std::vector<std::string> arguments = kSmallPages;
  arguments.insert(arguments.end(), {"--context-length", "512", "--kv-tokens", "1024"});
  Cluster cluster(arguments, GetParam());
  std::vector<std::string> without = arguments;
  without.emplace_back("--no-prefix-cache");
  Cluster plain(without, GetParam());
  ASSERT_TRUE(cluster.Start());
  ASSERT_TRUE(plain.Start());
  constexpr int kTalks = 8, kTurns = 4;
  std::vector<std::vector<std::string>> answers(kTalks, std::vector<std::string>(kTurns));
  const auto prompt = [](int talk, int turn) { return Numbers(static_cast<unsigned>(talk % 6), 60 + 90 * turn); };
  {
    std::vector<std::jthread> clients;
    for (int talk = 0; talk < kTalks; ++talk) {
      clients.emplace_back([&, talk] {
        for (int turn = 0; turn < kTurns; ++turn)
          answers[static_cast<size_t>(talk)][static_cast<size_t>(turn)] =
              Ask(cluster, {{"prompt", prompt(talk, turn)}, {"max_tokens", 20}}).text;
      });
    }
  }
  for (int talk = 0; talk < kTalks; ++talk) {
    for (int turn = 0; turn < kTurns; ++turn)
      EXPECT_EQ(answers[static_cast<size_t>(talk)][static_cast<size_t>(turn)],
                Ask(plain, {{"prompt", prompt(talk, turn)}, {"max_tokens", 20}}).text)
          << talk << " " << turn;
  }
  EXPECT_GT(cluster.Metric("decode", "prefix_cache_evicted_pages_total"), 0);
  EXPECT_GT(cluster.Metric("decode", "prefix_cache_hit_tokens_total"), 0);
  EXPECT_TRUE(cluster.NobodyHoldsAPage());
}

INSTANTIATE_TEST_SUITE_P(Modes, PrefixCache, kBothModes, NameOfMode);

}  // namespace
}  // namespace cofferdam::e2e
