// Answers through gateway and workers, against libllama's own on the same file, in both modes.
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "e2e/both_modes.h"
#include "runners.h"

namespace cofferdam::e2e {
namespace {

constexpr float kTolerance = 0.05f;  // see tests/oracle/greedy_test.cc
constexpr char kReference[] =
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, "
    "red ball. She wanted to play with it, but it was too high.\n"
    "Lily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn't know what to do. She said, \"I want to play with "
    "your ball, but I can't find it.\"";

// Pages of 16 tokens, and with a prefill worker even the shortest prompt goes through the handoff.
std::vector<std::string> SmallPages(const std::string& model, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"--model", model, "--page-size", "16", "--local-prefill-tokens", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

class Serving : public BothModes {
 protected:
  void SetUp() override {
    const auto model = StoriesModel();
    if (!model) GTEST_SKIP() << "COFFERDAM_TEST_MODELS does not name a folder with stories260K.gguf";
    model_ = *model;
  }
  void Start(std::vector<std::string> more = {}) {
    cluster_.emplace(SmallPages(model_, std::move(more)), GetParam());
    ASSERT_TRUE(cluster_->Start());
  }
  // How many prompts went where this mode sends them, and that none went elsewhere.
  void ExpectPromptsComputed(double prompts) const {
    const bool colocated = cluster_->colocated();
    // An answer that was preempted has its prompt computed once more.
    EXPECT_GE(cluster_->Metric("decode", colocated ? "local_prefills_total" : "handoffs_completed_total"), prompts);
    EXPECT_EQ(cluster_->Metric("decode", colocated ? "handoffs_completed_total" : "local_prefills_total"), 0);
  }
  std::string model_;
  std::optional<Cluster> cluster_;
};

std::string TextOf(const Response& response) {
  const Json json = response.json();
  return response.status == 200 && json.contains("choices") ? json["choices"][0]["text"].get<std::string>() : response.body;
}

TEST_P(Serving, TellsThePublishedStoryLetterForLetter) {
  Start();
  const Json body{{"prompt", "Once upon a time"}, {"temperature", 0}, {"max_tokens", 256}};
  const Response response = cluster_->Complete(body);
  ASSERT_EQ(response.status, 200) << response.body;
  const std::string story = "Once upon a time" + TextOf(response);
  EXPECT_EQ(story.substr(0, sizeof kReference - 1), kReference);
  ExpectPromptsComputed(1);
  EXPECT_EQ(cluster_->Metric("decode", "kv_pages_adopted_total"), cluster_->colocated() ? 0 : 1);

  oracle::Libllama libllama(model_);
  const oracle::Tokens wanted = libllama.Greedy(libllama.Tokenize("Once upon a time"), 256, nullptr);
  EXPECT_EQ(TextOf(response), libllama.Text(wanted));

  Json streamed = body;
  streamed["stream"] = true;
  EXPECT_EQ(http::TextOf(cluster_->Complete(streamed).body), TextOf(response));
  EXPECT_TRUE(cluster_->NobodyHoldsAPage());
}

// Lengths around page and chunk boundaries; one at a time, and all at once.
TEST_P(Serving, GreedyTokensMatchLibllama) {
  Start({"--chunk-tokens", "40", "--no-prefix-cache"});  // every prompt is computed, both times
  oracle::Libllama libllama(model_);
  struct Case {
    oracle::Tokens prompt, wanted;
    std::vector<float> margins;
  };
  std::vector<Case> cases;
  for (const size_t length : {2u, 15u, 16u, 17u, 18u, 31u, 32u, 33u, 34u, 40u, 41u, 42u, 80u, 81u, 129u, 200u, 250u}) {
    Case& c = cases.emplace_back();
    c.prompt = oracle::RandomTokens(libllama.vocabulary() - 3, length, length);
    for (TokenId& token : c.prompt) token += 3;
    c.wanted = libllama.Greedy(c.prompt, 256, &c.margins);
  }
  size_t near_ties = 0;
  auto check = [&](const Case& c, const Response& response) {
    ASSERT_EQ(response.status, 200) << response.body;
    const std::string got = TextOf(response), wanted = libllama.Text(c.wanted);
    if (got == wanted) return;
    size_t tie = 0;
    while (tie < c.margins.size() && c.margins[tie] >= kTolerance) ++tie;
    ++near_ties;
    ASSERT_LT(tie, c.margins.size()) << "length " << c.prompt.size() << " got: " << got << "\nwanted: " << wanted;
    const std::string before = libllama.Text(oracle::Tokens(c.wanted.begin(), c.wanted.begin() + static_cast<ptrdiff_t>(tie)));
    EXPECT_TRUE(got.starts_with(before)) << "length " << c.prompt.size() << " got: " << got << "\nwanted: " << wanted;
  };
  auto ask = [&](const Case& c) {
    // Generation goes on over an end-of-sequence token, as the oracle's does.
    return cluster_->Complete({{"prompt", c.prompt}, {"temperature", 0}, {"max_tokens", 256}, {"ignore_eos", true}});
  };
  for (const Case& c : cases) check(c, ask(c));
  std::vector<Response> together(cases.size());
  {
    std::vector<std::jthread> clients;
    for (size_t i = 0; i < cases.size(); ++i) clients.emplace_back([&, i] { together[i] = ask(cases[i]); });
  }
  for (size_t i = 0; i < cases.size(); ++i) check(cases[i], together[i]);
  std::printf("near ties that went the other way: %zu of %zu\n", near_ties, 2 * cases.size());
  ExpectPromptsComputed(2.0 * static_cast<double>(cases.size()));
  EXPECT_EQ(cluster_->Metric("decode", "checks_failed_total", "seal"), 0);
  EXPECT_TRUE(cluster_->NobodyHoldsAPage());
}

TEST_P(Serving, SampledTextIsAFunctionOfSeedAloneWhateverRunsBeside) {
  Start();
  const Json body{{"prompt", "One day, a big bear went to the sea and"},
                  {"temperature", 1.0},
                  {"top_p", 0.9},
                  {"seed", 7},
                  {"max_tokens", 100}};
  const std::string alone = TextOf(cluster_->Complete(body));
  std::vector<std::string> texts(16);
  {
    std::vector<std::jthread> clients;
    for (size_t i = 0; i < texts.size(); ++i) {
      clients.emplace_back([&, i] {
        Json other = body;
        if (i % 2 == 1) other = {{"prompt", "Tom " + std::string(i, 'a')}, {"temperature", 1.0}, {"seed", i}, {"max_tokens", 100}};
        texts[i] = TextOf(cluster_->Complete(other));
      });
    }
  }
  for (size_t i = 0; i < texts.size(); i += 2) EXPECT_EQ(texts[i], alone);
}

// The transfer window bounds reads from a prefill worker: without one there is nothing to read.
class Transfer : public Serving {};

TEST_P(Transfer, BytesInFlightStayWithinTheTransferWindow) {
  // A page of 16 tokens of this model is 5 layers * 16 tokens * 2 * 32 values * 2 bytes = 10 KiB; the window holds two.
  Start({"--transfer-window-bytes", "20480"});
  std::vector<std::jthread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      const std::vector<int> prompt(400, 300 + i);
      EXPECT_EQ(cluster_->Complete({{"prompt", prompt}, {"max_tokens", 4}}).status, 200);
    });
  }
  clients.clear();
  const double window = cluster_->Metric("decode", "transfer_window_bytes");
  const double most = cluster_->Metric("decode", "transfer_in_flight_bytes_max");
  EXPECT_EQ(window, 20480);
  EXPECT_GT(most, 0);
  EXPECT_LE(most, window);
  EXPECT_TRUE(Eventually([&] { return cluster_->Metric("decode", "transfer_in_flight_bytes") == 0; }));
  EXPECT_EQ(cluster_->Metric("decode", "transfer_read_bytes_total"), 8 * 25 * 10240.0);
}

TEST_P(Serving, ADisconnectRetiresThePagesOfTheRequest) {
  Start();
  RawClient client(cluster_->port());
  client.Send(http::Post("/v1/completions",
                         Json{{"prompt", "Once upon a time"}, {"max_tokens", 480}, {"stream", true}, {"ignore_eos", true}}.dump()));
  EXPECT_NE(client.ReadUntil("data: ").find("data: "), std::string::npos);
  client.Reset();
  EXPECT_TRUE(cluster_->NobodyHoldsAPage(2000ms));
  EXPECT_EQ(cluster_->Metric("decode", "requests_cancelled_total"), 1);
}

TEST_P(Serving, FinishTransferRunsADisconnectedRequestToItsFirstToken) {
  Start({"--on-disconnect", "finish-transfer", "--chunk-tokens", "16"});
  constexpr int kClients = 24;
  for (int i = 0; i < kClients; ++i) {
    const double before = cluster_->Metric("decode", "requests_total");
    RawClient client(cluster_->port());
    const std::vector<int> prompt(450, 300 + i);
    client.Send(
        http::Post("/v1/completions", Json{{"prompt", prompt}, {"max_tokens", 50}, {"stream", true}, {"ignore_eos", true}}.dump()));
    ASSERT_TRUE(Eventually([&] { return cluster_->Metric("decode", "requests_total") > before; }));
    client.Reset();
  }
  EXPECT_TRUE(cluster_->NobodyHoldsAPage());
  // What still waited for pages had nothing to finish; the pool holds eight requests, so at least those had.
  const double begun = cluster_->Metric("decode", cluster_->colocated() ? "local_prefills_total" : "handoffs_total");
  EXPECT_GE(begun, 8);
  ExpectPromptsComputed(begun);
  EXPECT_EQ(cluster_->Metric("decode", "handoffs_failed_total"), 0);
  // To the first token, and not to the fiftieth.
  EXPECT_GE(cluster_->Metric("decode", "generation_tokens_total"), begun);
  EXPECT_LT(cluster_->Metric("decode", "generation_tokens_total"), 25 * begun);
}

TEST_P(Serving, WrongInputIsRefusedClearlyAndDisturbsNobody) {
  Start();
  const std::string good = TextOf(cluster_->Complete({{"prompt", "Tom"}, {"temperature", 0}, {"max_tokens", 20}}));
  const std::vector<std::pair<std::string, int>> bodies{
      {"{", 400},
      {"[]", 400},
      {R"({"prompt": 5})", 400},
      {R"({"prompt": [99999]})", 400},
      {R"({"prompt": [-1]})", 400},
      {R"({"prompt": "a", "max_tokens": -1})", 400},
      {R"({"prompt": "a", "max_tokens": 100000})", 400},
      {R"({"prompt": "a", "temperature": 1e400})", 400},
      {R"({"prompt": "a", "n": 0})", 400},
      {R"({"prompt": "a", "n": 17})", 400},
      {R"({"prompt": "a", "model": "none"})", 404},
  };
  for (const auto& [body, status] : bodies) {
    const Response response = cluster_->Ask(http::Post("/v1/completions", body));
    EXPECT_EQ(response.status, status) << body << ": " << response.body;
    EXPECT_TRUE(response.json().contains("error")) << response.body;
  }
  EXPECT_EQ(TextOf(cluster_->Complete({{"prompt", "Tom"}, {"temperature", 0}, {"max_tokens", 20}})), good);
  EXPECT_TRUE(cluster_->NobodyHoldsAPage());
}

TEST_P(Serving, CtrlCStopsEverythingAndLeavesNothing) {
  Start();
  const std::string socket = cluster_->SocketOf("decode").substr(5);
  std::vector<pid_t> children;
  for (const std::string& role : cluster_->roles()) children.push_back(cluster_->ProcessOf(role));
  children.push_back(cluster_->ProcessOf("gateway"));
  EXPECT_EQ(access(socket.c_str(), F_OK), 0);
  EXPECT_EQ(cluster_->Stop(), 0) << cluster_->log();
  for (const pid_t child : children) {
    ASSERT_GT(child, 1);
    EXPECT_NE(kill(child, 0), 0);
  }
  EXPECT_NE(access(socket.c_str(), F_OK), 0);
}

INSTANTIATE_TEST_SUITE_P(Modes, Serving, kBothModes, NameOfMode);
INSTANTIATE_TEST_SUITE_P(Modes, Transfer, testing::Values(Mode::kDisaggregated), NameOfMode);

}  // namespace
}  // namespace cofferdam::e2e
