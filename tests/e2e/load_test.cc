// Many clients, many of whose requests are cut off: every finished answer is libllama's, and no page is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>

#include "e2e/both_modes.h"
#include "e2e/questions.h"

namespace cofferdam::e2e {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kQuestions = 96;

struct Plan {
  int requests = 0, clients = 0;
  size_t longest_prompt = 0, longest_answer = 64;
  unsigned longest_until_cut_us = 400'000;
  unsigned priorities = 1;  // drawn from 0 up to this
};

// Clients of one cluster, each with one request at a time; a third of these are cut off in the middle.
class Crowd {
 public:
  static constexpr size_t kPriorities = 3;

  Crowd(const Cluster& cluster, const std::string& model, Plan plan)
      : cluster_(cluster),
        plan_(plan),
        libllama_(model),
        questions_(Questions(libllama_, kQuestions, 1, plan.longest_prompt, plan.longest_answer)) {}

  void Run() {
    std::vector<std::jthread> clients;
    for (int i = 0; i < plan_.clients; ++i) {
      clients.emplace_back([this] {
        for (int request = next_++; request < plan_.requests; request = next_++) Ask(request);
      });
    }
  }
  int finished() const { return finished_; }
  int cut() const { return cut_; }
  int wrong() const { return wrong_; }
  // From sending to the first token, of requests of this priority that were not cut off.
  double LongestWaitSeconds(size_t priority) const { return longest_wait_[priority]; }

 private:
  void Ask(int request) {
    std::mt19937_64 random(static_cast<uint64_t>(request) + 1);
    const Question& q = questions_[random() % questions_.size()];
    const size_t length = 1 + random() % plan_.longest_answer;
    const size_t priority = random() % plan_.priorities;
    const bool stream = request % 2 == 0;
    const Json body{{"prompt", q.prompt}, {"temperature", 0}, {"max_tokens", length},
                    {"ignore_eos", true}, {"stream", stream}, {"priority", priority}};
    RawClient http(cluster_.port());
    const Clock::time_point sent = Clock::now();
    http.Send(http::Post("/v1/completions", body.dump()));
    if (random() % 3 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % plan_.longest_until_cut_us));
      http.Reset();
      ++cut_;
      return;
    }
    if (stream) {
      http.ReadUntil("data:");
      const double waited = std::chrono::duration<double>(Clock::now() - sent).count();
      const std::lock_guard lock(mutex_);
      longest_wait_[priority] = std::max(longest_wait_[priority], waited);
    }
    const Response response = http.Read();
    const Json json = response.json();
    const std::string got = stream ? http::TextOf(response.body) : json.value("/choices/0/text"_json_pointer, "");
    ++finished_;
    if (response.status == 200 && q.Accepts(libllama_, got, length)) return;
    if (++wrong_ <= 5) ADD_FAILURE() << "request " << request << " status " << response.status << ": " << response.body;
  }

  const Cluster& cluster_;
  const Plan plan_;
  oracle::Libllama libllama_;
  const std::vector<Question> questions_;
  std::atomic<int> next_{0}, finished_{0}, cut_{0}, wrong_{0};
  std::mutex mutex_;
  std::array<double, kPriorities> longest_wait_{};
};

class Load : public BothModes {
 protected:
  static void ExpectAllWell(const Cluster& cluster, const Crowd& crowd, int requests) {
    EXPECT_EQ(crowd.wrong(), 0);
    EXPECT_GT(crowd.cut(), requests / 4);
    EXPECT_EQ(crowd.cut() + crowd.finished(), requests);
    EXPECT_TRUE(cluster.NobodyHoldsAPage());
    for (const std::string& role : cluster.roles()) {
      EXPECT_EQ(cluster.Metric(role, "checks_failed_total", "tags"), 0);
      EXPECT_EQ(cluster.Metric(role, "kv_page_reservations_total"),
                cluster.Metric(role, "kv_page_retirements_total") + cluster.Metric(role, "kv_pages", "cached"));
    }
    EXPECT_EQ(cluster.Metric("decode", "checks_failed_total", "seal"), 0);
    std::printf("%d finished and right, %d cut off; %.0f handoffs completed, %.0f failed or cancelled\n", crowd.finished(),
                crowd.cut(), cluster.Metric("decode", "handoffs_completed_total"),
                cluster.Metric("decode", "handoffs_failed_total"));
  }
};

TEST_P(Load, OfSixtyFourClientsAThirdOfWhoseRequestsAreCutOff) {
  // What so many look for is a page that is lost between two workers; where there is one, fewer are enough.
  const int requests = GetParam() == Mode::kDisaggregated ? 2000 : 600;
  const auto model = StoriesModel();
  if (!model) GTEST_SKIP() << "COFFERDAM_TEST_MODELS does not name a folder with stories260K.gguf";
  // Pools that hold some ten requests, so that the rest waits, and pages that were just freed are taken first.
  Cluster cluster({"--model", *model, "--page-size", "16", "--local-prefill-tokens", "1", "--kv-tokens", "2048", "--lifo-pages",
                   "--transfer-window-bytes", "100000", "--max-queue", "4096"},
                  GetParam());
  ASSERT_TRUE(cluster.Start());
  Crowd crowd(cluster, *model, {.requests = requests, .clients = 64, .longest_prompt = 430});
  crowd.Run();
  ExpectAllWell(cluster, crowd, requests);
}

// COFFERDAM_LOAD_REQUESTS says how many; a release is tried with 10,000.
TEST_P(Load, OverAPoolForThreeWithMixedPrioritiesAndCutOffs) {
  const char* asked = std::getenv("COFFERDAM_LOAD_REQUESTS");
  const int requests = asked != nullptr ? std::atoi(asked) : 600;
  const auto model = StoriesModel();
  if (!model) GTEST_SKIP() << "COFFERDAM_TEST_MODELS does not name a folder with stories260K.gguf";
  // Three of the longest, 192 tokens each, when one of them has begun to grow.
  Cluster cluster(
      {"--model", *model, "--page-size", "16", "--local-prefill-tokens", "1", "--context-length", "192", "--kv-tokens", "576",
       "--reserve-output-tokens", "16", "--lifo-pages", "--transfer-window-bytes", "30000", "--max-queue", "4096"},
      GetParam());
  ASSERT_TRUE(cluster.Start());
  const Plan plan{.requests = requests,
                  .clients = 24,
                  .longest_prompt = 72,
                  .longest_answer = 120,
                  .longest_until_cut_us = 100'000,
                  .priorities = Crowd::kPriorities};
  Crowd crowd(cluster, *model, plan);
  const Clock::time_point start = Clock::now();
  crowd.Run();
  const double each = std::chrono::duration<double>(Clock::now() - start).count() / requests;
  ExpectAllWell(cluster, crowd, requests);
  EXPECT_GT(cluster.Metric("decode", "preemptions_total"), requests / 100);
  for (size_t priority = 0; priority < Crowd::kPriorities; ++priority) {
    // It stands behind those that were open when it came, and those that come while its priority has it wait. The rest is room for
    // what a machine does besides.
    const double bound = static_cast<double>(priority) + 4 * each * plan.clients + 2;
    EXPECT_LT(crowd.LongestWaitSeconds(priority), bound) << priority;
    std::printf("priority %zu: longest wait %.3f s (bound %.3f)\n", priority, crowd.LongestWaitSeconds(priority), bound);
  }
  std::printf("%.1f requests a second, %.0f preemptions\n", 1 / each, cluster.Metric("decode", "preemptions_total"));
}

INSTANTIATE_TEST_SUITE_P(Modes, Load, kBothModes, NameOfMode);

}  // namespace
}  // namespace cofferdam::e2e
