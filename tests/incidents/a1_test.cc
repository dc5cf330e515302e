// The incident: a prompt that is longer than a worker's pool and shorter than the context that was asked for. In 2026 such a
// prompt was marked rejected, went on as a placeholder of one token, and decode attended over stale pages.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "e2e/both_modes.h"
#include "runners.h"

namespace cofferdam::e2e {
namespace {

constexpr uint64_t kContext = 512, kSmallPool = 256;
constexpr int kPrompt = 300, kOutput = 8;  // more than kSmallPool, less than kContext

struct Side {
  const char* name;
  const char* small_pool;  // the option that makes it so
  const char* who;         // the worker that the message names
  Mode mode = Mode::kDisaggregated;
};

class A1 : public testing::TestWithParam<Side> {
 protected:
  void SetUp() override {
    const auto model = StoriesModel();
    if (!model) GTEST_SKIP() << "COFFERDAM_TEST_MODELS does not name a folder with stories260K.gguf";
    cluster_.emplace(std::vector<std::string>{"--model", *model, "--page-size", "16", "--local-prefill-tokens", "1",
                                              "--context-length", std::to_string(kContext), "--kv-tokens", "1024",
                                              GetParam().small_pool, std::to_string(kSmallPool), "--shrink-context"},
                     GetParam().mode);
    ASSERT_TRUE(cluster_->Start());
    libllama_.emplace(*model);
    const oracle::Tokens wanted = libllama_->Greedy(libllama_->Tokenize("Once upon a time"), 32, nullptr);
    story_ = libllama_->Text(wanted);
  }

  static std::vector<int> LongPrompt() { return std::vector<int>(kPrompt, 300); }

  std::vector<double> Reservations() const {
    cluster_->AwaitMetrics();
    std::vector<double> reservations;
    for (const std::string& role : cluster_->roles()) reservations.push_back(cluster_->Metric(role, "kv_page_reservations_total"));
    return reservations;
  }

  void ExpectTheNextRequestRight() const {
    const Response next = cluster_->Complete({{"prompt", "Once upon a time"}, {"temperature", 0}, {"max_tokens", 32}});
    ASSERT_EQ(next.status, 200) << next.body;
    EXPECT_EQ(next.json()["choices"][0]["text"], story_);
    EXPECT_TRUE(cluster_->NobodyHoldsAPage());
  }

  static v1::GenerateRequest Generate(const std::vector<int>& tokens) {
    v1::GenerateRequest request;
    request.set_request_id("straight");
    request.mutable_attempt()->set_boot_id(77);
    request.mutable_attempt()->set_counter(1);
    request.mutable_tokens()->Assign(tokens.begin(), tokens.end());
    request.set_max_tokens(kOutput);
    return request;
  }

  std::optional<Cluster> cluster_;
  std::optional<oracle::Libllama> libllama_;
  std::string story_;
};

TEST_P(A1, IsRefusedByTheGatewayWithBothNumbersBeforeAPageIsReserved) {
  ExpectTheNextRequestRight();  // stale pages of an earlier request lie around
  const auto before = Reservations();
  for (const double reserved : before) EXPECT_GT(reserved, 0);
  for (const bool stream : {false, true}) {
    const Response refused =
        cluster_->Complete({{"prompt", LongPrompt()}, {"temperature", 0}, {"max_tokens", kOutput}, {"stream", stream}});
    EXPECT_EQ(refused.status, 400);
    EXPECT_TRUE(refused.headers.at("content-type").starts_with("application/json")) << refused.headers.at("content-type");
    const Json error = refused.json()["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded") << refused.body;
    EXPECT_EQ(error["type"], "invalid_request_error");
    const std::string message = error["message"];
    EXPECT_NE(message.find(std::to_string(kPrompt)), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(kSmallPool)), std::string::npos) << message;
  }
  EXPECT_EQ(Reservations(), before);
  ExpectTheNextRequestRight();
}

TEST_P(A1, IsRefusedByDecodeItselfWithTheSameCodeAndNumbers) {
  ExpectTheNextRequestRight();
  const auto before = Reservations();
  grpc::ClientContext context;
  const auto reader = cluster_->Decode()->Generate(&context, Generate(LongPrompt()));
  v1::GenerateEvent event;
  EXPECT_FALSE(reader->Read(&event)) << event.DebugString();
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  const auto facts = ParseFacts(status.error_details());
  ASSERT_TRUE(facts.has_value()) << status.error_message();
  EXPECT_EQ(facts->code, error_code::kContextLengthExceeded);
  EXPECT_EQ(facts->requested, static_cast<uint64_t>(kPrompt + kOutput));
  EXPECT_EQ(facts->limit, kSmallPool);
  EXPECT_NE(status.error_message().find(GetParam().who), std::string::npos) << status.error_message();
  EXPECT_EQ(Reservations(), before);
  ExpectTheNextRequestRight();
}

class A1OfPrefill : public A1 {};

// The worker whose pool is small refuses; where decode's is small, prefill, asked alone, has room and computes.
TEST_P(A1OfPrefill, IsRefusedByASmallPrefillItselfWithTheSameCodeAndNumbers) {
  ExpectTheNextRequestRight();
  const auto before = Reservations();
  grpc::ClientContext context;
  const auto stream = cluster_->Prefill()->Run(&context);
  v1::PrefillRequest open;
  open.mutable_attempt()->set_boot_id(77);
  open.mutable_attempt()->set_counter(1);
  open.mutable_open()->set_request_id("straight");
  open.mutable_open()->set_layout_id(cluster_->Info("prefill").layout().layout_id());
  const std::vector<int> tokens = LongPrompt();
  open.mutable_open()->mutable_tokens()->Assign(tokens.begin(), tokens.end());
  EXPECT_TRUE(stream->Write(open));
  v1::PrefillEvent event;
  if (std::string(GetParam().name) == "DecodePoolIsSmall") {
    EXPECT_TRUE(stream->Read(&event));
    EXPECT_EQ(event.admitted().pages(), (kPrompt + 15) / 16) << event.DebugString();
    context.TryCancel();
    stream->Finish();
    return ExpectTheNextRequestRight();
  }
  EXPECT_FALSE(stream->Read(&event)) << event.DebugString();
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  const auto facts = ParseFacts(status.error_details());
  ASSERT_TRUE(facts.has_value()) << status.error_message();
  EXPECT_EQ(facts->code, error_code::kContextLengthExceeded);
  EXPECT_EQ(facts->requested, static_cast<uint64_t>(kPrompt));
  EXPECT_EQ(facts->limit, kSmallPool);
  EXPECT_EQ(Reservations(), before);
  ExpectTheNextRequestRight();
}

// Many at once, mixed with good ones: the good ones are all right, and nothing is kept of the others.
TEST_P(A1, DisturbsNobodyUnderLoad) {
  std::vector<std::jthread> clients;
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 12; ++i) {
        if ((client + i) % 2 == 0) {
          EXPECT_EQ(cluster_->Complete({{"prompt", LongPrompt()}, {"max_tokens", kOutput}}).status, 400);
          grpc::ClientContext context;
          const auto reader = cluster_->Decode()->Generate(&context, Generate(LongPrompt()));
          EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
        } else {
          const Response good = cluster_->Complete({{"prompt", "Once upon a time"}, {"temperature", 0}, {"max_tokens", 32}});
          EXPECT_EQ(good.status, 200);
          EXPECT_EQ(good.json()["choices"][0]["text"], story_);
        }
      }
    });
  }
  clients.clear();
  ExpectTheNextRequestRight();
}

std::string NameOfSide(const testing::TestParamInfo<Side>& info) { return info.param.name; }

constexpr Side kPrefillSmall{"PrefillPoolIsSmall", "--prefill-kv-tokens", "prefill worker"};
constexpr Side kDecodeSmall{"DecodePoolIsSmall", "--decode-kv-tokens", "worker"};
constexpr Side kOnlyPoolSmall{"TheOnlyPoolIsSmall", "--decode-kv-tokens", "worker", Mode::kColocated};

INSTANTIATE_TEST_SUITE_P(Sides, A1, testing::Values(kPrefillSmall, kDecodeSmall, kOnlyPoolSmall), NameOfSide);
INSTANTIATE_TEST_SUITE_P(Sides, A1OfPrefill, testing::Values(kPrefillSmall, kDecodeSmall), NameOfSide);

}  // namespace
}  // namespace cofferdam::e2e
