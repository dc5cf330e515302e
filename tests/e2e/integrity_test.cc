// The integrity checks as an operator meets them: modes, metrics, health.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>

#include "e2e/cluster.h"

namespace cofferdam::e2e {
namespace {

std::string Answer(Cluster& cluster, const std::string& content) {
  const Json message{{"role", "user"}, {"content", content}};
  const Response response = cluster.Chat({{"messages", {message}}, {"temperature", 0}, {"max_tokens", 24}});
  EXPECT_EQ(response.status, 200) << response.body;
  return response.status == 200 ? response.json()["choices"][0]["message"]["content"].get<std::string>() : "";
}

// Long enough for several sealed pages on both sides.
std::string Question(const std::string& code) {
  std::string text = "The access code of Anna is " + code + ".";
  for (int i = 0; i < 24; ++i) text += " The old boat rested near the harbour.";
  return text + " What is the access code of Anna?";
}

class VerifyReadsModes : public testing::TestWithParam<const char*> {};

TEST_P(VerifyReadsModes, EveryModeAnswersTheSameAndCountsItsChecks) {
  Cluster cluster(
      {"--verify-reads", GetParam(), "--page-size", "16", "--chunk-tokens", "64", "--scrub-bytes-per-second", "100000000"});
  ASSERT_TRUE(cluster.Start());
  for (const char* code : {"7391", "AB2C", "90X7KQ"}) EXPECT_EQ(Answer(cluster, Question(code)), code);
  const bool payload = std::string(GetParam()) != "tags";
  for (const char* role : {"prefill", "decode"}) {
    EXPECT_GT(cluster.Metric(role, "checks_total", "tags"), 0) << role;
    EXPECT_EQ(cluster.Metric(role, "checks_total", "payload") > 0, payload) << role;
    for (const char* kind : {"tags", "seal", "payload", "scrub", "content"})
      EXPECT_EQ(cluster.Metric(role, "checks_failed_total", kind), 0) << role << kind;
  }
  EXPECT_GT(cluster.Metric("decode", "checks_total", "seal"), 0);
  EXPECT_EQ(cluster.Ask("GET /health HTTP/1.1\r\nHost: test\r\n\r\n").status, 200) << "every check that is on has run";
}

INSTANTIATE_TEST_SUITE_P(All, VerifyReadsModes, testing::Values("tags", "sampled:3", "full"));

TEST(VerifyReads, ACheckThatWasNotMadeIsNotOnTheWire) {
  Cluster cluster({"--verify-reads", "full"});
  ASSERT_TRUE(cluster.Start());
  v1::GenerateRequest request;
  request.mutable_attempt()->set_boot_id(77);
  request.mutable_attempt()->set_counter(1);
  for (const int token : {5, 6, 7}) request.add_tokens(token);  // decode's own, and no page is ever full
  request.set_max_tokens(2);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 20s);
  const auto stub = cluster.Decode();
  const auto reader = stub->Generate(&context, request);
  v1::Finished finished;
  for (v1::GenerateEvent event; reader->Read(&event);) {
    if (event.has_finished()) finished = event.finished();
  }
  ASSERT_TRUE(reader->Finish().ok());
  ASSERT_EQ(finished.generated_tokens(), 2u);
  ASSERT_EQ(finished.checks_size(), 1) << finished.DebugString();
  EXPECT_EQ(finished.checks(0).kind(), "tags");
  EXPECT_EQ(finished.checks(0).pages(), 4u) << "one page, before and after each of two steps";
}

TEST(VerifyReads, ThereIsNoOff) {
  const Ended ended = RunCofferdam({"up", "--port", "0", "--verify-reads", "off"});
  EXPECT_EQ(ended.exit_code, 78);
  EXPECT_NE(ended.output.find("There is no off"), std::string::npos) << ended.output;
}

}  // namespace
}  // namespace cofferdam::e2e
