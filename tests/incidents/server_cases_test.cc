// Public failures of other engines, by their class and number, through the real servers. (A1 has a file of its own; what must be
// timed exactly stands in cases_test.cc.)
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "e2e/both_modes.h"

namespace cofferdam::e2e {
namespace {

std::vector<int> Numbers(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::vector<int> tokens(count);
  for (int& token : tokens) token = static_cast<int>(40 + random() % 200);
  return tokens;
}

class Servers : public BothModes {
 protected:
  void StartWith(std::vector<std::string> more) {
    std::vector<std::string> arguments{"--page-size", "16", "--local-prefill-tokens", "1", "--lifo-pages"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    cluster_.emplace(arguments, GetParam());
    ASSERT_TRUE(cluster_->Start());
  }
  static Json Body(const std::vector<int>& prompt, int output) {
    return {{"prompt", prompt}, {"temperature", 0}, {"max_tokens", output}, {"ignore_eos", true}};
  }
  std::string Answer(const std::vector<int>& prompt, int output) const {
    const Response response = cluster_->Complete(Body(prompt, output));
    EXPECT_EQ(response.status, 200) << response.body;
    return response.status == 200 ? response.json()["choices"][0]["text"].get<std::string>() : "";
  }
  Response Health() const { return cluster_->Ask("GET /health HTTP/1.1\r\nHost: test\r\n\r\n"); }

  std::optional<Cluster> cluster_;
};

// Eight at once, each of which fits alone and no two together.
TEST_P(Servers, A2_PromptsThatFitOnlyOneAtATimeAreAllAnsweredAndTheServersLive) {
  StartWith({"--context-length", "512", "--kv-tokens", "512"});
  std::vector<std::string> alone(8);
  for (size_t i = 0; i < alone.size(); ++i) alone[i] = Answer(Numbers(i, 480), 8);
  std::vector<pid_t> before;
  for (const std::string& role : cluster_->roles()) before.push_back(cluster_->ProcessOf(role));
  std::vector<std::string> together(alone.size());
  {
    std::vector<std::jthread> clients;
    for (size_t i = 0; i < alone.size(); ++i) clients.emplace_back([&, i] { together[i] = Answer(Numbers(i, 480), 8); });
  }
  EXPECT_EQ(together, alone);
  std::vector<pid_t> after;
  for (const std::string& role : cluster_->roles()) after.push_back(cluster_->ProcessOf(role));
  EXPECT_EQ(after, before) << "a process has been started again";
  EXPECT_TRUE(cluster_->NobodyHoldsAPage());
}

// Names that other engines' workers use among themselves, and our own.
TEST_P(Servers, A3_InternalFieldsAreNeverReadFromAClient) {
  StartWith({});
  const std::string right = Answer(Numbers(1, 60), 8);
  const double handoffs = cluster_->Metric("decode", "handoffs_total");
  for (const char* field : {"bootstrap_host", "bootstrap_room", "kv_transfer_params", "prefill", "prefill_address", "domain",
                            "attempt", "boot_id", "first_page", "layout_id", "resumed_tokens", "remote_block_ids"}) {
    for (const Json& value : {Json("10.0.0.1:1"), Json(7), Json{{"a", 1}}, Json::array({1, 2}), Json(nullptr)}) {
      Json body = Body(Numbers(1, 60), 8);
      body[field] = value;
      const Response response = cluster_->Complete(body);
      // Ignored or refused by its name, and in neither case acted upon.
      if (response.status == 400) {
        EXPECT_NE(response.body.find(field), std::string::npos) << response.body;
      } else {
        EXPECT_EQ(response.json()["choices"][0]["text"], right) << field << ": " << response.body;
      }
    }
  }
  EXPECT_GE(cluster_->Metric("decode", "handoffs_total"), handoffs);
  EXPECT_EQ(Answer(Numbers(1, 60), 8), right);
}

TEST_P(Servers, A4_AnOverflowIsRefusedBeforeAnyHeaderOfAStream) {
  StartWith({"--context-length", "256"});
  Json body = Body(Numbers(1, 300), 8);
  body["stream"] = true;
  const Response refused = cluster_->Complete(body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_TRUE(refused.headers.at("content-type").starts_with("application/json"));
  EXPECT_EQ(refused.json()["error"]["code"], "context_length_exceeded") << refused.body;
  EXPECT_EQ(refused.body.find("data:"), std::string::npos);
}

TEST_P(Servers, H1_EveryFirstTokenOfABurstIsItsOwn) {
  StartWith({});
  constexpr size_t kClients = 48;
  std::vector<std::string> alone(kClients), together(kClients);
  for (size_t i = 0; i < kClients; ++i) alone[i] = Answer(Numbers(i, 30 + i), 1);
  {
    std::vector<std::jthread> clients;
    for (size_t i = 0; i < kClients; ++i) clients.emplace_back([&, i] { together[i] = Answer(Numbers(i, 30 + i), 1); });
  }
  EXPECT_EQ(together, alone);
}

// After a storm of cancels the next request is answered, and health tells the truth.
TEST_P(Servers, L10_AfterABurstOfCancelsServiceGoesOnAndHealthIsTrue) {
  StartWith({"--context-length", "512", "--kv-tokens", "2048"});
  const std::string right = Answer(Numbers(7, 200), 16);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::jthread> clients;
    for (int i = 0; i < 64; ++i) {
      clients.emplace_back([&, i] {
        Json body = Body(Numbers(static_cast<uint64_t>(100 * round + i), 400), 60);
        body["stream"] = i % 2 == 0;
        RawClient client(cluster_->port());
        client.Send(http::Post("/v1/completions", body.dump()));
        std::this_thread::sleep_for(std::chrono::milliseconds(i % 23));
        client.Reset();
      });
    }
  }
  EXPECT_EQ(Answer(Numbers(7, 200), 16), right);
  EXPECT_EQ(Health().status, 200);
  EXPECT_TRUE(cluster_->NobodyHoldsAPage());
}

// P, another conversation, P again: byte for byte.
TEST_P(Servers, S6_AnotherConversationInBetweenChangesNothing) {
  StartWith({});
  const std::string before = Answer(Numbers(1, 200), 32);
  for (uint64_t other = 2; other < 8; ++other) Answer(Numbers(other, 150), 32);
  EXPECT_EQ(Answer(Numbers(1, 200), 32), before);
}

// To the last token of the context, beside neighbours in pages next to it.
TEST_P(Servers, B1_AtTheEndOfTheContextNeighboursAreUndisturbed) {
  StartWith({"--context-length", "256"});
  const std::vector<int> full = Numbers(1, 200);
  const std::string right = Answer(full, 56), beside = Answer(Numbers(2, 100), 100);
  std::string first, second;
  {
    std::jthread one([&] { first = Answer(full, 56); });
    std::jthread two([&] { second = Answer(Numbers(2, 100), 100); });
  }
  EXPECT_EQ(first, right);
  EXPECT_EQ(second, beside);
  EXPECT_EQ(cluster_->Complete(Body(full, 57)).status, 400) << "one token more";
}

INSTANTIATE_TEST_SUITE_P(Modes, Servers, kBothModes, NameOfMode);

}  // namespace
}  // namespace cofferdam::e2e
