// The integrity checks as operators and clients meet them: modes, metrics, health, the counts of one request.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <tuple>

#include "e2e/both_modes.h"

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

class VerifyReadsModes : public testing::TestWithParam<std::tuple<const char*, Mode>> {
 protected:
  static std::string Verify() { return std::get<0>(GetParam()); }
  static Mode Workers() { return std::get<1>(GetParam()); }
};

TEST_P(VerifyReadsModes, EveryModeAnswersTheSameAndCountsItsChecks) {
  Cluster cluster(
      {"--verify-reads", Verify(), "--page-size", "16", "--chunk-tokens", "64", "--scrub-bytes-per-second", "100000000"},
      Workers());
  ASSERT_TRUE(cluster.Start());
  for (const char* code : {"7391", "AB2C", "90X7KQ"}) EXPECT_EQ(Answer(cluster, Question(code)), code);
  const bool payload = Verify() != "tags";
  for (const std::string& role : cluster.roles()) {
    EXPECT_GT(cluster.Metric(role, "checks_total", "tags"), 0) << role;
    EXPECT_EQ(cluster.Metric(role, "checks_total", "payload") > 0, payload) << role;
    for (const char* kind : {"tags", "seal", "payload", "scrub", "content", "rows"})
      EXPECT_EQ(cluster.Metric(role, "checks_failed_total", kind), 0) << role << kind;
  }
  EXPECT_EQ(cluster.Metric("decode", "checks_total", "seal") > 0, !cluster.colocated()) << "only of pages that arrive";
  EXPECT_EQ(cluster.Metric("decode", "checks_total", "content"), cluster.Metric("decode", "kv_pages_adopted_total"));
  EXPECT_EQ(cluster.Ask("GET /health HTTP/1.1\r\nHost: test\r\n\r\n").status, 200) << "every check that is on has run";
}

TEST_P(VerifyReadsModes, AClientThatAsksIsToldTheChecksOfItsRequestAlone) {
  Cluster cluster({"--verify-reads", Verify(), "--page-size", "16", "--chunk-tokens", "64", "--no-prefix-cache"}, Workers());
  ASSERT_TRUE(cluster.Start());
  const Response first = AskVerified(cluster, Question("7391"), false);
  EXPECT_EQ(first.json()["choices"][0]["message"]["content"], "7391");
  const Counts counts = CountsOf(first.headers.at("cofferdam-verified"));
  ASSERT_EQ(counts.size(), 7u) << first.headers.at("cofferdam-verified");
  const uint64_t pages = counts.at("pages");
  const auto whole_pages = first.json()["usage"]["prompt_tokens"].get<uint64_t>() / 16;
  EXPECT_GT(whole_pages, 2u);
  EXPECT_EQ(pages > 2, !cluster.colocated()) << "those that a prefill worker sent";
  EXPECT_EQ(pages > 0, !cluster.colocated());
  EXPECT_EQ(counts.at("seal"), pages);
  EXPECT_GT(counts.at("tags"), whole_pages) << "each page in every step";
  EXPECT_GT(counts.at("rows"), 0u) << "each step that decode computed";
  EXPECT_EQ(counts.at("payload") > 0, Verify() != "tags");
  if (Verify() == "full") {
    EXPECT_GE(counts.at("payload"), whole_pages);
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

INSTANTIATE_TEST_SUITE_P(All, VerifyReadsModes, testing::Combine(testing::Values("tags", "sampled:3", "full"), kBothModes),
                         [](const auto& info) {
                           const std::string verify = std::get<0>(info.param);
                           return NameOf(std::get<1>(info.param)) + "_" + verify.substr(0, verify.find(':'));
                         });

class ChecksOnTheWire : public BothModes {};

TEST_P(ChecksOnTheWire, ACheckThatWasNotMadeIsNotThere) {
  Cluster cluster({"--verify-reads", "full"}, GetParam());
  ASSERT_TRUE(cluster.Start());
  v1::GenerateRequest request;
  request.mutable_attempt()->set_boot_id(77);
  request.mutable_attempt()->set_counter(1);
  for (const int token : {5, 6, 7}) request.add_tokens(token);  // decode's own, and no page is ever full
  request.set_max_tokens(2);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * 20s);
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

INSTANTIATE_TEST_SUITE_P(Modes, ChecksOnTheWire, kBothModes, NameOfMode);

class TenureLogOfModes : public BothModes {};

// From the log alone, and without a word of any prompt in it.
TEST_P(TenureLogOfModes, SaysWhoHeldPagesAndWhoWasRefused) {
  std::string folder = std::filesystem::temp_directory_path() / "cofferdam-tenure-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::map<std::string, int> expected;  // by role
  {
    Cluster cluster({"--tenure-log", folder, "--page-size", "16", "--context-length", "512"}, GetParam());
    for (const std::string& role : cluster.roles()) expected[role] = 1;
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
  std::map<std::string, int> served;
  for (const Json& prompt : report["long_prompts"]) {
    EXPECT_FALSE(prompt["rejected"]) << "the gateway refuses before a worker hears of it: " << prompt;
    EXPECT_GT(prompt["pages"], 6);
    ++served[prompt["role"]];
  }
  EXPECT_EQ(served, expected) << ended.output;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ostringstream text;
    text << std::ifstream(file.path()).rdbuf();
    for (const char* word : {"90X7KQ", "AB2C", "harbour", "Anna"})
      EXPECT_EQ(text.str().find(word), std::string::npos) << word << " in " << file.path();
  }
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Modes, TenureLogOfModes, kBothModes, NameOfMode);

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
