// kill -9 of a worker in the middle of requests: clear errors or right answers soon, service again, nothing leaked.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "e2e/both_modes.h"
#include "e2e/questions.h"

namespace cofferdam::e2e {
namespace {

constexpr size_t kRequests = 32, kTokens = 200;

struct Victim {
  std::string role;
  Mode mode = Mode::kDisaggregated;
};

class Crash : public testing::TestWithParam<Victim> {};

TEST_P(Crash, OfAWorkerGivesClearErrorsSoonAndServiceComesBack) {
  const auto model = StoriesModel();
  if (!model) GTEST_SKIP() << "COFFERDAM_TEST_MODELS does not name a folder with stories260K.gguf";
  const std::string victim = GetParam().role;
  Cluster cluster({"--model", *model, "--page-size", "16", "--local-prefill-tokens", "1", "--chunk-tokens", "32"}, GetParam().mode);
  ASSERT_TRUE(cluster.Start());
  oracle::Libllama libllama(*model);
  const std::vector<Question> questions = Questions(libllama, kRequests, 200, 250, kTokens);
  auto body = [&](size_t i) {
    return Json{{"prompt", questions[i].prompt}, {"temperature", 0}, {"max_tokens", kTokens}, {"ignore_eos", true}};
  };

  std::vector<Response> responses(kRequests);
  std::vector<std::chrono::steady_clock::duration> took(kRequests);
  std::chrono::steady_clock::time_point killed;
  std::vector<std::jthread> clients;
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < kRequests; ++i) {
    clients.emplace_back([&, i] {
      responses[i] = cluster.Complete(body(i));
      took[i] = std::chrono::steady_clock::now() - begin;
    });
  }
  std::this_thread::sleep_for(150ms);
  const pid_t old = cluster.ProcessOf(victim);
  cluster.Signal(victim, SIGKILL);
  killed = std::chrono::steady_clock::now();
  clients.clear();

  size_t answered = 0, failed = 0;
  std::chrono::steady_clock::duration slowest{};
  for (size_t i = 0; i < kRequests; ++i) {
    if (responses[i].status == 200) {
      ++answered;
      EXPECT_TRUE(questions[i].Accepts(libllama, responses[i].json()["choices"][0]["text"], kTokens)) << responses[i].body;
      continue;
    }
    ++failed;
    EXPECT_TRUE(responses[i].status == 503 || responses[i].status == 500 || responses[i].status == 429) << responses[i].status;
    const Json error = responses[i].json()["error"];
    EXPECT_TRUE(error["message"].is_string() && !error["message"].get<std::string>().empty()) << responses[i].body;
    EXPECT_TRUE(error["code"].is_string()) << responses[i].body;
    slowest = std::max(slowest, took[i] - (killed - begin));
    EXPECT_LT(slowest, 5s) << responses[i].body;
  }
  std::printf("%s killed: %zu answered (all right), %zu clear errors, the last %.2f s after the kill\n", victim.c_str(), answered,
              failed, std::chrono::duration<double>(slowest).count());

  EXPECT_TRUE(Eventually([&] { return cluster.ProcessOf(victim) != old; }));
  ASSERT_TRUE(Eventually([&] { return cluster.Complete(body(0)).status == 200; }, 15000ms)) << cluster.log();
  for (size_t i = 0; i < 4; ++i) {
    const Response response = cluster.Complete(body(i));
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_TRUE(questions[i].Accepts(libllama, response.json()["choices"][0]["text"], kTokens)) << response.body;
  }
  EXPECT_TRUE(cluster.NobodyHoldsAPage()) << cluster.log();
}

// The processes that a crash leaves behind must stop as cleanly as ever.
TEST_P(Crash, LeavesASystemThatStopsCleanly) {
  Cluster cluster({}, GetParam().mode);
  ASSERT_TRUE(cluster.Start());
  cluster.Signal(GetParam().role, SIGKILL);
  EXPECT_EQ(cluster.Stop(), 0) << cluster.log();
}

class Stop : public BothModes {};

TEST_P(Stop, UnderLoadIsCleanToo) {
  Cluster cluster({}, GetParam());
  ASSERT_TRUE(cluster.Start());
  std::atomic<bool> stop{false};
  std::atomic<int> answered{0};
  std::vector<std::jthread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&, i] {
      const std::vector<int> prompt(static_cast<size_t>(100 + 50 * i), 40 + i);
      const Json body{{"prompt", prompt}, {"max_tokens", 200}, {"ignore_eos", true}, {"stream", i % 2 == 0}};
      while (!stop) answered += cluster.Complete(body).complete;
    });
  }
  std::this_thread::sleep_for(700ms);
  EXPECT_TRUE(Eventually([&] { return answered > 0; }, 10s));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(cluster.Stop(), 0) << cluster.log();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  stop = true;
  clients.clear();
  EXPECT_EQ(cluster.log().find("is killed"), std::string::npos) << cluster.log();
}

INSTANTIATE_TEST_SUITE_P(Modes, Stop, kBothModes, NameOfMode);
INSTANTIATE_TEST_SUITE_P(Roles, Crash, testing::Values(Victim{"prefill"}, Victim{"decode"}, Victim{"decode", Mode::kColocated}),
                         [](const auto& victim) { return victim.param.role + NameOf(victim.param.mode); });

// Disaggregated alone, since it is about the other end of a handoff. A stopped process holds its connections open and says nothing:
// worse than a dead one.
TEST(Hang, OfThePrefillWorkerFailsItsRequestsSoonAndGivesPagesBack) {
  const auto model = StoriesModel();
  if (!model) GTEST_SKIP() << "COFFERDAM_TEST_MODELS does not name a folder with stories260K.gguf";
  Cluster cluster({"--model", *model, "--page-size", "16", "--local-prefill-tokens", "1", "--heartbeat-ms", "300"});
  ASSERT_TRUE(cluster.Start());
  cluster.Signal("prefill", SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  const Response response = cluster.Complete({{"prompt", "Once upon a time"}, {"max_tokens", 8}});
  EXPECT_EQ(response.status, 503) << response.body;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_TRUE(
      Eventually([&] { return cluster.Metric("decode", "kv_pages", "free") == cluster.Metric("decode", "kv_pages_total"); }));
  cluster.Signal("prefill", SIGCONT);
  ASSERT_TRUE(Eventually(
      [&] {
        return cluster.Complete({{"prompt", "Once upon a time"}, {"max_tokens", 8}}).status == 200;
      },
      15000ms))
      << cluster.log();
  EXPECT_TRUE(cluster.NobodyHoldsAPage()) << cluster.log();
}

}  // namespace
}  // namespace cofferdam::e2e
