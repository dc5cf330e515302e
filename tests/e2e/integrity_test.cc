// The integrity checks as operators and clients meet them: modes, metrics, health, the counts of one request.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
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

using Counts = std::map<std::string, uint64_t>;

// "pages=16, tags=640" as a map.
Counts CountsOf(const std::string& text) {
  Counts counts;
  std::istringstream in(text);
  for (std::string item; in >> item;) counts[item.substr(0, item.find('='))] = std::stoull(item.substr(item.find('=') + 1));
  return counts;
}

// A chat that asks for the counts of its checks.
Response AskVerified(const Cluster& cluster, const std::string& content, bool stream) {
  const Json message{{"role", "user"}, {"content", content}};
  const Json body{{"messages", {message}}, {"temperature", 0}, {"max_tokens", 24}, {"stream", stream}};
  Response response = cluster.Ask(http::Post("/v1/chat/completions", body.dump(), "Cofferdam-Verify: 1\r\n"));
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_TRUE(response.headers.contains("cofferdam-verified"));
  return response;
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
    for (const char* kind : {"tags", "seal", "payload", "scrub", "content", "rows"})
      EXPECT_EQ(cluster.Metric(role, "checks_failed_total", kind), 0) << role << kind;
  }
  EXPECT_GT(cluster.Metric("decode", "checks_total", "seal"), 0);
  EXPECT_EQ(cluster.Metric("decode", "checks_total", "content"), cluster.Metric("decode", "kv_pages_adopted_total"));
  EXPECT_EQ(cluster.Ask("GET /health HTTP/1.1\r\nHost: test\r\n\r\n").status, 200) << "every check that is on has run";
}

TEST_P(VerifyReadsModes, AClientThatAsksIsToldTheChecksOfItsRequestAlone) {
  Cluster cluster({"--verify-reads", GetParam(), "--page-size", "16", "--chunk-tokens", "64", "--no-prefix-cache"});
  ASSERT_TRUE(cluster.Start());
  const Response first = AskVerified(cluster, Question("7391"), false);
  EXPECT_EQ(first.json()["choices"][0]["message"]["content"], "7391");
  const Counts counts = CountsOf(first.headers.at("cofferdam-verified"));
  ASSERT_EQ(counts.size(), 7u) << first.headers.at("cofferdam-verified");
  const uint64_t pages = counts.at("pages");
  EXPECT_GT(pages, 2u);
  EXPECT_EQ(counts.at("seal"), pages);
  EXPECT_GT(counts.at("tags"), pages) << "each page at its arrival and in every step";
  EXPECT_GT(counts.at("rows"), 0u) << "each step that decode computed";
  const std::string mode = GetParam();
  EXPECT_EQ(counts.at("payload") > 0, mode != "tags");
  if (mode == "full") {
    EXPECT_GE(counts.at("payload"), pages);
  }

  // The same question again: its counts, and not those of both.
  const Response second = AskVerified(cluster, Question("7391"), true);
  EXPECT_EQ(second.headers.at("cofferdam-verified"), "pages=" + std::to_string(pages));
  const std::string start = ": cofferdam-verified ";
  const size_t at = second.body.find(start);
  ASSERT_NE(at, std::string::npos) << second.body;
  const size_t end = second.body.find("\n\ndata: [DONE]\n\n", at);
  ASSERT_NE(end, std::string::npos) << second.body;
  const Counts again = CountsOf(second.body.substr(at + start.size(), end - at - start.size()));
  for (const char* kind : {"pages", "tags", "seal", "payload"}) EXPECT_EQ(again.at(kind), counts.at(kind)) << kind;
  EXPECT_TRUE(Eventually([&] { return cluster.Metric("decode", "checks_total", "seal") == 2.0 * static_cast<double>(pages); }));
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
  ASSERT_EQ(finished.checks_size(), 2) << finished.DebugString();
  EXPECT_EQ(finished.checks(0).kind(), "tags");
  EXPECT_EQ(finished.checks(0).pages(), 4u) << "one page, before and after each of two steps";
  EXPECT_EQ(finished.checks(1).kind(), "rows");
  EXPECT_EQ(finished.checks(1).pages(), 2u) << "one page in each of two steps";
}

// From the log alone, and without a word of any prompt in it.
TEST(TenureLog, SaysWhoHeldPagesAndWhoWasRefused) {
  std::string folder = std::filesystem::temp_directory_path() / "cofferdam-tenure-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    Cluster cluster({"--tenure-log", folder, "--page-size", "16", "--context-length", "512"});
    ASSERT_TRUE(cluster.Start());
    EXPECT_EQ(Answer(cluster, Question("90X7KQ")), "90X7KQ");
    const Json message{{"role", "user"}, {"content", Question("AB2C") + Question("AB2C") + Question("AB2C")}};
    EXPECT_EQ(cluster.Chat({{"messages", {message}}, {"max_tokens", 8}}).status, 400);
  }
  const Ended ended = RunCofferdam({"incidents", "--log", folder, "--min-prompt", "100", "--json"});
  EXPECT_EQ(ended.exit_code, 0) << ended.output;
  const Json report = Json::parse(ended.output, nullptr, false);
  ASSERT_TRUE(report.is_object()) << ended.output;
  EXPECT_EQ(report["incomplete"], false);
  EXPECT_TRUE(report["incidents"].empty());
  std::map<std::string, int> served;  // by role
  for (const Json& prompt : report["long_prompts"]) {
    EXPECT_FALSE(prompt["rejected"]) << "the gateway refuses before a worker hears of it: " << prompt;
    EXPECT_GT(prompt["pages"], 6);
    ++served[prompt["role"]];
  }
  EXPECT_EQ(served, (std::map<std::string, int>{{"decode", 1}, {"prefill", 1}})) << ended.output;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ostringstream text;
    text << std::ifstream(file.path()).rdbuf();
    for (const char* word : {"90X7KQ", "AB2C", "harbour", "Anna"})
      EXPECT_EQ(text.str().find(word), std::string::npos) << word << " in " << file.path();
  }
  std::filesystem::remove_all(folder);
}

TEST(TenureLog, AFolderThatCanNotBeWrittenIsRefusedAndOffIsAnAnswer) {
  const Ended ended = RunCofferdam({"up", "--port", "0", "--tenure-log", "/proc/no/such/folder"});
  EXPECT_EQ(ended.exit_code, 78) << ended.output;
  EXPECT_NE(ended.output.find("--tenure-log"), std::string::npos) << ended.output;
  Cluster cluster({"--tenure-log", "off"});
  ASSERT_TRUE(cluster.Start());
  EXPECT_NE(cluster.log().find("no tenure log is kept"), std::string::npos);
}

TEST(VerifyReads, ThereIsNoOff) {
  const Ended ended = RunCofferdam({"up", "--port", "0", "--verify-reads", "off"});
  EXPECT_EQ(ended.exit_code, 78);
  EXPECT_NE(ended.output.find("There is no off"), std::string::npos) << ended.output;
}

}  // namespace
}  // namespace cofferdam::e2e
