// Many clients, a third of whose requests are cut off: every finished answer is libllama's, and no page is lost.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "e2e/both_modes.h"
#include "e2e/questions.h"

namespace cofferdam::e2e {
namespace {

constexpr int kClients = 64;
constexpr size_t kQuestions = 96, kLongestAnswer = 64;

class Load : public BothModes {};

TEST_P(Load, OfSixtyFourClientsAThirdOfWhoseRequestsAreCutOff) {
  // What so many look for is a page that is lost between two workers; where there is one, fewer are enough.
  const int requests = GetParam() == Mode::kDisaggregated ? 2000 : 600;
  const auto model = StoriesModel();
  if (!model) GTEST_SKIP() << "COFFERDAM_TEST_MODELS does not name a folder with stories260K.gguf";
  oracle::Libllama libllama(*model);
  const std::vector<Question> questions = Questions(libllama, kQuestions, 1, 430, kLongestAnswer);
  // Pools that hold some ten requests, so that the rest waits, and pages that were just freed are taken first.
  Cluster cluster({"--model", *model, "--page-size", "16", "--local-prefill-tokens", "1", "--kv-tokens", "2048", "--lifo-pages",
                   "--transfer-window-bytes", "100000", "--max-queue", "4096"},
                  GetParam());
  // Quiet logs hide the port; it is found through them.
  ASSERT_TRUE(cluster.Start());

  std::atomic<int> next{0}, finished{0}, cut{0}, wrong{0};
  auto client = [&] {
    for (int i = next++; i < requests; i = next++) {
      std::mt19937_64 random(static_cast<uint64_t>(i) + 1);
      const Question& q = questions[random() % questions.size()];
      const size_t length = 1 + random() % kLongestAnswer;
      const Json body{
          {"prompt", q.prompt}, {"temperature", 0}, {"max_tokens", length}, {"ignore_eos", true}, {"stream", i % 2 == 0}};
      RawClient http(cluster.port());
      http.Send(http::Post("/v1/completions", body.dump()));
      if (random() % 3 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 400000));
        http.Reset();
        ++cut;
        continue;
      }
      const Response response = http.Read();
      const Json json = response.json();
      const std::string got = i % 2 == 0 ? http::TextOf(response.body) : json.value("/choices/0/text"_json_pointer, "");
      ++finished;
      if (response.status == 200 && q.Accepts(libllama, got, length)) continue;
      if (++wrong <= 5) ADD_FAILURE() << "request " << i << " status " << response.status << ": " << response.body;
    }
  };
  {
    std::vector<std::jthread> clients;
    for (int i = 0; i < kClients; ++i) clients.emplace_back(client);
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(cut, requests / 4);
  EXPECT_EQ(cut + finished, requests);
  EXPECT_TRUE(cluster.NobodyHoldsAPage());
  for (const std::string& role : cluster.roles()) {
    EXPECT_EQ(cluster.Metric(role, "checks_failed_total", "tags"), 0);
    EXPECT_EQ(cluster.Metric(role, "kv_page_reservations_total"),
              cluster.Metric(role, "kv_page_retirements_total") + cluster.Metric(role, "kv_pages", "cached"));
  }
  EXPECT_EQ(cluster.Metric("decode", "checks_failed_total", "seal"), 0);
  std::printf("%d finished and right, %d cut off; %.0f handoffs completed, %.0f failed or cancelled\n", finished.load(), cut.load(),
              cluster.Metric("decode", "handoffs_completed_total"), cluster.Metric("decode", "handoffs_failed_total"));
}

INSTANTIATE_TEST_SUITE_P(Modes, Load, kBothModes, NameOfMode);

}  // namespace
}  // namespace cofferdam::e2e
