// Answers that grow page by page in pools that are too small for all of them.
#include <gtest/gtest.h>

#include <string_view>
#include <thread>

#include "e2e/both_modes.h"

namespace cofferdam::e2e {
namespace {

constexpr int kAnswers = 10, kOutputTokens = 180;

Json Body(int index) {
  Json prompt = Json::array();
  for (int i = 0; i < 20 + index; ++i) prompt.push_back(100 + (i * 37 + index * 101) % 300);
  Json body{{"prompt", prompt}, {"max_tokens", kOutputTokens}, {"ignore_eos", true}, {"priority", index % 3}};
  if (index % 2 == 0) {
    body["temperature"] = 0;
  } else {
    body.update({{"temperature", 1}, {"seed", index}, {"presence_penalty", 0.3}, {"frequency_penalty", 0.2}});
  }
  return body;
}

class Growth : public BothModes {};

// Two of these answers fit; whoever is preempted is computed again by decode, or handed over anew, and goes on.
TEST_P(Growth, APreemptedAnswerIsTheSameAnswer) {
  for (const char* local : {"1", "512"}) {
    if (GetParam() == Mode::kColocated && local == std::string_view("1")) continue;  // it computes all, whatever this says
    std::vector<std::string> arguments{"--page-size",
                                       "16",
                                       "--context-length",
                                       "256",
                                       "--kv-tokens",
                                       "448",
                                       "--local-prefill-tokens",
                                       local,
                                       "--reserve-output-tokens",
                                       "16"};
    if (const auto model = StoriesModel()) arguments.insert(arguments.end(), {"--model", *model});
    Cluster cluster(arguments, GetParam());
    ASSERT_TRUE(cluster.Start());
    std::vector<std::string> alone;
    for (int i = 0; i < kAnswers; ++i) {
      const Response response = cluster.Complete(Body(i));
      ASSERT_EQ(response.status, 200) << response.body;
      alone.push_back(response.json()["choices"][0]["text"]);
    }
    EXPECT_EQ(cluster.Metric("decode", "preemptions_total"), 0) << "one at a time fits";
    std::vector<std::string> together(kAnswers);
    std::vector<int> tokens(kAnswers);
    {
      std::vector<std::jthread> clients;
      for (int i = 0; i < kAnswers; ++i) {
        clients.emplace_back([&, i] {
          const Response response = cluster.Complete(Body(i));
          if (response.status != 200) return;
          together[static_cast<size_t>(i)] = response.json()["choices"][0]["text"];
          tokens[static_cast<size_t>(i)] = response.json()["usage"]["completion_tokens"];
        });
      }
    }
    EXPECT_EQ(together, alone);
    EXPECT_EQ(tokens, std::vector<int>(kAnswers, kOutputTokens));
    EXPECT_GT(cluster.Metric("decode", "preemptions_total"), 0);
    EXPECT_GT(cluster.Metric("decode", "kv_pages_grown_total"), kAnswers);
    EXPECT_TRUE(cluster.NobodyHoldsAPage());
    EXPECT_EQ(cluster.Metric("decode", "checks_failed_total", "tags"), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Growth, kBothModes, NameOfMode);

}  // namespace
}  // namespace cofferdam::e2e
