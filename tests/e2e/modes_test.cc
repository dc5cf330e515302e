// The same questions to both modes of `up`: whether a prompt's pages come from a prefill worker or are computed by the worker that
// answers, every token and every probability is the same to the last bit.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <thread>
#include <tuple>

#include "e2e/both_modes.h"

namespace cofferdam::e2e {
namespace {

constexpr uint32_t kOutput = 48;
constexpr int kVocabulary = 480;  // less than that of either model

struct Asked {
  int length = 0;
  float temperature = 0;  // 0: greedy
  uint64_t seed = 0;

  std::vector<int> Prompt() const {
    std::mt19937 random(static_cast<unsigned>(length));
    std::vector<int> tokens(static_cast<size_t>(length));
    for (int& token : tokens) token = 3 + static_cast<int>(random() % kVocabulary);
    return tokens;
  }
};

// Each length greedy, and with two seeds.
std::vector<Asked> QuestionsOf(const std::vector<int>& lengths) {
  std::vector<Asked> questions;
  for (const int length : lengths) {
    questions.push_back({.length = length});
    for (const uint64_t seed : {7u, 8u}) questions.push_back({.length = length, .temperature = 1, .seed = seed});
  }
  return questions;
}

// Token, and the bits of its log probability.
using Tokens = std::vector<std::pair<int, uint32_t>>;

Tokens TokensOf(const Cluster& cluster, const Asked& asked) {
  v1::GenerateRequest request;
  request.mutable_attempt()->set_boot_id(77);
  const std::vector<int> prompt = asked.Prompt();
  request.mutable_tokens()->Assign(prompt.begin(), prompt.end());
  request.set_max_tokens(kOutput);
  request.mutable_sampling()->set_temperature(asked.temperature);
  request.mutable_sampling()->set_top_p(1);
  request.mutable_sampling()->set_repetition_penalty(1);
  request.mutable_sampling()->set_seed(asked.seed);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * 30s);
  const auto reader = cluster.Decode()->Generate(&context, request);
  Tokens tokens;
  for (v1::GenerateEvent event; reader->Read(&event);) {
    if (event.has_token()) tokens.emplace_back(event.token().token(), std::bit_cast<uint32_t>(event.token().logprob()));
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return tokens;
}

// The body of an answer over HTTP, without what names the request and its time.
Json BodyOf(const Cluster& cluster, const Asked& asked) {
  const Response response = cluster.Complete({{"prompt", asked.Prompt()},
                                              {"temperature", asked.temperature},
                                              {"seed", asked.seed},
                                              {"max_tokens", kOutput},
                                              {"ignore_eos", true}});
  EXPECT_EQ(response.status, 200) << response.body;
  Json body = response.json();
  for (const char* own : {"id", "created"}) body.erase(own);
  return body;
}

struct Answers {
  std::vector<Tokens> alone, together;
  std::vector<Json> bodies;
  bool operator==(const Answers&) const = default;
};

Answers Ask(const Cluster& cluster, const std::vector<Asked>& questions) {
  Answers answers;
  for (const Asked& asked : questions) answers.alone.push_back(TokensOf(cluster, asked));
  for (const Asked& asked : questions) answers.bodies.push_back(BodyOf(cluster, asked));
  answers.together.resize(questions.size());
  std::vector<std::jthread> clients;
  for (size_t i = 0; i < questions.size(); ++i) {
    clients.emplace_back([&, i] { answers.together[i] = TokensOf(cluster, questions[i]); });
  }
  clients.clear();
  return answers;
}

// Answers that did not depend on the question would be the same in both modes, too.
void ExpectToTellQuestionsApart(const std::vector<Asked>& questions, const std::vector<Tokens>& answers) {
  for (size_t i = 0; i < questions.size(); ++i) {
    EXPECT_EQ(answers[i].size(), kOutput) << questions[i].length;
    for (size_t k = 0; k < i; ++k) EXPECT_NE(answers[i], answers[k]) << questions[i].length << " and " << questions[k].length;
  }
}

void ExpectTheSameOfBoth(const std::vector<std::string>& arguments, const std::vector<Asked>& questions) {
  std::map<Mode, Answers> answers;
  for (const Mode mode : {Mode::kDisaggregated, Mode::kColocated}) {
    Cluster cluster(arguments, mode);
    ASSERT_TRUE(cluster.Start());
    answers[mode] = Ask(cluster, questions);
    const double handoffs = cluster.Metric("decode", "handoffs_completed_total");
    EXPECT_EQ(handoffs, cluster.colocated() ? 0 : 3.0 * static_cast<double>(questions.size())) << "or nothing is compared";
    EXPECT_TRUE(cluster.NobodyHoldsAPage());
  }
  const Answers& split = answers[Mode::kDisaggregated];
  const Answers& whole = answers[Mode::kColocated];
  ExpectToTellQuestionsApart(questions, split.alone);
  for (size_t i = 0; i < questions.size(); ++i) {
    const Asked& asked = questions[i];
    const std::string which = std::to_string(asked.length) + " tokens, seed " + std::to_string(asked.seed);
    EXPECT_EQ(split.alone[i], whole.alone[i]) << which;
    EXPECT_EQ(split.bodies[i], whole.bodies[i]) << which;
    EXPECT_EQ(split.together[i], split.alone[i]) << which;
    EXPECT_EQ(whole.together[i], split.alone[i]) << which;
  }
}

// Pages of 16 tokens: shorter than one, about one, and up to 28 of them.
TEST(SameAnswers, OfASmallModelInBothModes) {
  const auto model = StoriesModel();
  if (!model) GTEST_SKIP() << "COFFERDAM_TEST_MODELS does not name a folder with stories260K.gguf";
  ExpectTheSameOfBoth(
      {"--model", *model, "--page-size", "16", "--local-prefill-tokens", "1", "--chunk-tokens", "40", "--no-prefix-cache"},
      QuestionsOf({2, 9, 16, 17, 33, 100, 255, 257, 449}));
}

// The pages of the default: 64 tokens, and up to 29 of them.
TEST(SameAnswers, OfTheEmbeddedModelInBothModes) {
  ExpectTheSameOfBoth({"--local-prefill-tokens", "1", "--no-prefix-cache"}, QuestionsOf({3, 65, 130, 700, 1900}));
}

}  // namespace
}  // namespace cofferdam::e2e
