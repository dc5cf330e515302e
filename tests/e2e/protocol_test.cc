// Straight to the workers by gRPC, past the gateway: no proxy is relied on, and what is wrong is refused by code and reason.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "base/error.h"
#include "e2e/both_modes.h"

namespace cofferdam::e2e {
namespace {

class Protocol : public BothModes {
 protected:
  void SetUp() override {
    const auto model = StoriesModel();
    if (!model) GTEST_SKIP() << "COFFERDAM_TEST_MODELS does not name a folder with stories260K.gguf";
    cluster_.emplace(
        std::vector<std::string>{"--model", *model, "--page-size", "16", "--local-prefill-tokens", "1", "--heartbeat-ms", "100"},
        GetParam());
    ASSERT_TRUE(cluster_->Start());
    good_ = Text();
    ASSERT_FALSE(good_.empty());
    cluster_->AwaitMetrics();
  }

  void TearDown() override {
    if (!cluster_) return;
    EXPECT_EQ(Text(), good_);
    EXPECT_TRUE(cluster_->NobodyHoldsAPage()) << cluster_->log();
  }

  std::string Text() const {
    const Response response = cluster_->Complete({{"prompt", "Once upon a time"}, {"temperature", 0}, {"max_tokens", 32}});
    return response.status == 200 ? response.json()["choices"][0]["text"].get<std::string>() : "";
  }

  static v1::GenerateRequest GoodRequest(int prompt_tokens) {
    v1::GenerateRequest request;
    request.set_request_id("straight");
    request.mutable_attempt()->set_boot_id(77);
    request.mutable_attempt()->set_counter(1);
    for (int i = 0; i < prompt_tokens; ++i) request.add_tokens(300 + i % 100);
    request.set_max_tokens(8);
    return request;
  }

  grpc::Status Generate(const v1::GenerateRequest& request, int* tokens = nullptr) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience * 20s);
    const auto reader = cluster_->Decode()->Generate(&context, request);
    for (v1::GenerateEvent event; reader->Read(&event);) {
      EXPECT_EQ(event.attempt().boot_id(), 77u);
      if (event.has_token() && tokens != nullptr) ++*tokens;
    }
    return reader->Finish();
  }

  std::optional<Cluster> cluster_;
  std::string good_;
};

// What is said to a prefill worker, and what it answers: there is one in one mode alone.
class ProtocolOfPrefill : public Protocol {
 protected:
  v1::PrefillRequest GoodOpen(int tokens) const {
    v1::PrefillRequest open;
    open.mutable_attempt()->set_boot_id(77);
    open.mutable_attempt()->set_counter(1);
    open.mutable_open()->set_request_id("straight");
    open.mutable_open()->set_layout_id(cluster_->Info("prefill").layout().layout_id());
    for (int i = 0; i < tokens; ++i) open.mutable_open()->add_tokens(300 + i % 100);
    return open;
  }

  // Opens a run and reads it to its end without a heartbeat.
  grpc::Status Run(const v1::PrefillRequest& open, int* pages = nullptr) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience * 20s);
    const auto stream = cluster_->Prefill()->Run(&context);
    stream->Write(open);
    for (v1::PrefillEvent event; stream->Read(&event);) {
      if (pages != nullptr) *pages += event.sealed().pages_size();
    }
    return stream->Finish();
  }
};

TEST_P(Protocol, DecodeServesACallerThatIsNotTheGateway) {
  int tokens = 0;
  const grpc::Status status = Generate(GoodRequest(50), &tokens);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(tokens, 0);
}

TEST_P(Protocol, DecodeRefusesWhatIsWrongAndSaysWhat) {
  using Change = std::function<void(v1::GenerateRequest&)>;
  const std::pair<Change, std::string> cases[] = {
      {[](auto& r) { r.clear_tokens(); }, "token"},
      {[](auto& r) { r.set_tokens(3, 1 << 20); }, "1048576"},
      {[](auto& r) { r.set_tokens(3, -1); }, "-1"},
      {[](auto& r) { r.set_max_tokens(0); }, "max_tokens"},
      {[](auto& r) { r.set_max_tokens(4000000000U); }, "4000000"},
      {[](auto& r) { r.set_resumed_tokens(51); }, "resumed"},
      {[](auto& r) { r.mutable_sampling()->set_temperature(std::nanf("")); }, "temperature"},
      {[](auto& r) {
         r.mutable_sampling()->set_top_p(1);
         r.mutable_sampling()->set_repetition_penalty(-1);
       },
       "penalty"},
      {[](auto& r) { r.mutable_sampling()->add_bias_tokens(5); }, "logit_bias"},
      {[](auto& r) {
         for (int i = 0; i < 5000; ++i) r.add_stop_tokens(i);
       },
       "stop"},
      {[](auto& r) { r.set_domain(std::string(5000, 'd')); }, "domain"},
      {[](auto& r) { r.set_request_id(std::string(5000, 'i')); }, "request id"},
  };
  const double before = cluster_->Metric("decode", "kv_page_reservations_total");
  for (const auto& [change, word] : cases) {
    v1::GenerateRequest request = GoodRequest(50);
    change(request);
    const grpc::Status status = Generate(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << word << ": " << status.error_message();
    EXPECT_NE(status.error_message().find(word), std::string::npos) << "no '" << word << "' in: " << status.error_message();
  }
  cluster_->AwaitMetrics();
  EXPECT_EQ(cluster_->Metric("decode", "kv_page_reservations_total"), before);
}

TEST_P(ProtocolOfPrefill, PrefillRefusesWhatIsWrongAndSaysWhat) {
  using Change = std::function<void(v1::PrefillRequest&)>;
  const std::tuple<Change, grpc::StatusCode, std::string> cases[] = {
      {[](auto& r) { r.clear_open(); }, grpc::StatusCode::INVALID_ARGUMENT, "first message"},
      {[](auto& r) { r.mutable_open()->clear_tokens(); }, grpc::StatusCode::INVALID_ARGUMENT, "token"},
      {[](auto& r) { r.mutable_open()->set_tokens(0, 600); }, grpc::StatusCode::INVALID_ARGUMENT, "600"},
      {[](auto& r) { r.mutable_open()->set_domain(std::string(5000, 'd')); }, grpc::StatusCode::INVALID_ARGUMENT, "domain"},
      {[](auto& r) { r.mutable_open()->set_layout_id("another layout!!"); }, grpc::StatusCode::FAILED_PRECONDITION,
       "layouts differ"},
      {[](auto& r) { r.mutable_open()->set_layout_id("short"); }, grpc::StatusCode::FAILED_PRECONDITION, "layouts differ"},
  };
  const double before = cluster_->Metric("prefill", "kv_page_reservations_total");
  for (const auto& [change, code, word] : cases) {
    v1::PrefillRequest open = GoodOpen(40);
    change(open);
    const grpc::Status status = Run(open);
    EXPECT_EQ(status.error_code(), code) << word << ": " << status.error_message();
    EXPECT_NE(status.error_message().find(word), std::string::npos) << "no '" << word << "' in: " << status.error_message();
  }
  cluster_->AwaitMetrics();
  EXPECT_EQ(cluster_->Metric("prefill", "kv_page_reservations_total"), before);
}

TEST_P(ProtocolOfPrefill, ADecodeWorkerThatGoesSilentLosesItsPinAfterThreeHeartbeats) {
  int pages = 0;
  const auto begin = std::chrono::steady_clock::now();
  const grpc::Status status = Run(GoodOpen(40), &pages);
  EXPECT_EQ(pages, 3);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 250ms);
  EXPECT_LE(std::chrono::steady_clock::now() - begin, 5s);
}

// The stream's life is the pin's life: pages stay while heartbeats come, and go with the stream.
TEST_P(ProtocolOfPrefill, PagesArePinnedAsLongAsTheStreamLives) {
  grpc::ClientContext context;
  const auto stream = cluster_->Prefill()->Run(&context);
  ASSERT_TRUE(stream->Write(GoodOpen(40)));
  v1::PrefillRequest beat;
  beat.mutable_attempt()->set_boot_id(77);
  beat.mutable_attempt()->set_counter(1);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(50ms);
    ASSERT_TRUE(stream->Write(beat));
  }
  EXPECT_EQ(cluster_->Metric("prefill", "kv_pages", "sealed"), 3);
  context.TryCancel();
  stream->Finish();
  EXPECT_TRUE(Eventually([&] { return cluster_->Metric("prefill", "kv_pages", "sealed") == 0; }, 1000ms));
}

// What a peer claims is not believed: neither pages that are not there, nor a jump back.
TEST_P(ProtocolOfPrefill, WrongHeartbeatsChangeNothing) {
  grpc::ClientContext context;
  const auto stream = cluster_->Prefill()->Run(&context);
  ASSERT_TRUE(stream->Write(GoodOpen(40)));
  v1::PrefillRequest beat = GoodOpen(40);  // a second open, too
  beat.set_covered_pages(1000000);
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(20ms);
    ASSERT_TRUE(stream->Write(beat));
  }
  EXPECT_EQ(cluster_->Metric("prefill", "kv_pages", "sealed"), 3);
  context.TryCancel();
  stream->Finish();
}

TEST_P(Protocol, CancellingTheCallIsTheAbort) {
  for (int i = 0; i < 40; ++i) {
    v1::GenerateRequest request = GoodRequest(450);
    request.set_max_tokens(60);
    grpc::ClientContext context;
    const auto reader = cluster_->Decode()->Generate(&context, request);
    std::this_thread::sleep_for(std::chrono::microseconds(i * 500));
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(cluster_->NobodyHoldsAPage(2000ms));
}

INSTANTIATE_TEST_SUITE_P(Modes, Protocol, kBothModes, NameOfMode);
INSTANTIATE_TEST_SUITE_P(Modes, ProtocolOfPrefill, testing::Values(Mode::kDisaggregated), NameOfMode);

// I13 across processes: the bits of every probability, not only the token, are the same whether the prompt's pages came through
// the handoff or were computed by decode, with a prefill worker beside it or without one, in chunks of 512 or of 24, alone or
// among others.
TEST(NonInterference, ProbabilitiesAreBitEqualThroughTheHandoffAndWithoutIt) {
  const auto model = StoriesModel();
  if (!model) GTEST_SKIP() << "COFFERDAM_TEST_MODELS does not name a folder with stories260K.gguf";
  using Probabilities = std::vector<std::pair<int, float>>;
  const std::vector<int> lengths{2, 16, 17, 33, 100, 255, 256, 257, 400};
  auto ask = [](const Cluster& cluster, int length) {
    v1::GenerateRequest request;
    request.mutable_attempt()->set_boot_id(77);
    for (int i = 0; i < length; ++i) request.add_tokens(3 + (length * 31 + i * i) % 500);
    request.set_max_tokens(60);
    grpc::ClientContext context;
    const auto reader = cluster.Decode()->Generate(&context, request);
    Probabilities got;
    for (v1::GenerateEvent event; reader->Read(&event);) {
      if (event.has_token()) got.emplace_back(event.token().token(), event.token().logprob());
    }
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_EQ(got.size(), 60u);
    return got;
  };
  std::vector<Probabilities> reference;
  {
    Cluster local({"--model", *model, "--page-size", "16", "--local-prefill-tokens", "100000"});
    ASSERT_TRUE(local.Start());
    for (const int length : lengths) reference.push_back(ask(local, length));
    EXPECT_EQ(local.Metric("decode", "handoffs_total"), 0);
  }
  for (const auto& [mode, cached] : {std::pair(Mode::kDisaggregated, false), std::pair(Mode::kDisaggregated, true),
                                     std::pair(Mode::kColocated, false), std::pair(Mode::kColocated, true)}) {
    const std::string how = NameOf(mode) + (cached ? " over the prefix cache" : "");
    std::vector<std::string> arguments{"--model", *model,           "--page-size", "16", "--local-prefill-tokens",
                                       "1",       "--chunk-tokens", "24"};
    if (!cached) arguments.emplace_back("--no-prefix-cache");
    Cluster cluster(arguments, mode);
    ASSERT_TRUE(cluster.Start());
    for (size_t i = 0; i < lengths.size(); ++i) EXPECT_EQ(ask(cluster, lengths[i]), reference[i]) << how << " " << lengths[i];
    std::vector<Probabilities> together(lengths.size());
    {
      std::vector<std::jthread> clients;
      for (size_t i = 0; i < lengths.size(); ++i) clients.emplace_back([&, i] { together[i] = ask(cluster, lengths[i]); });
    }
    EXPECT_EQ(together, reference) << how;
    EXPECT_EQ(cluster.Metric("decode", "prefix_cache_hit_tokens_total") > 0, cached) << how;
    if (cached) continue;
    EXPECT_EQ(cluster.Metric("decode", "handoffs_completed_total"),
              cluster.colocated() ? 0 : 2.0 * static_cast<double>(lengths.size()));
  }
}

}  // namespace
}  // namespace cofferdam::e2e
