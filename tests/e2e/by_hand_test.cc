// The three processes as an operator starts them one by one, and what happens when they do not belong together.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "e2e/cluster.h"

namespace cofferdam::e2e {
namespace {

// One compute thread each: workers that share cores starve each other in the barriers of a step.
class ByHand : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "cofferdam-hand-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    for (const char* name : {"secret", "other-secret"}) std::ofstream(folder_ + "/" + name) << std::string(40, *name) << "\n";
  }
  void TearDown() override {
    gateway_.reset();
    decode_.reset();
    prefill_.reset();
    std::filesystem::remove_all(folder_);
  }

  void StartPrefill(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{
        "prefill",          "--listen", Socket("prefill"), "--fabric", "shm:" + folder_ + "/fabric.sock", "--cluster-secret-file",
        folder_ + "/secret"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    prefill_.emplace(arguments, folder_ + "/prefill.log");
  }
  void StartDecode(const std::string& secret, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"--prefill", Socket("prefill"), "--local-prefill-tokens", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    StartDecodeAlone(secret, arguments);
  }
  void StartDecodeAlone(const std::string& secret, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{
        "decode", "--threads", "1", "--listen", Socket("decode"), "--cluster-secret-file", folder_ + "/" + secret};
    arguments.insert(arguments.end(), more.begin(), more.end());
    decode_.emplace(arguments, folder_ + "/decode.log");
  }
  void StartGateway(bool watch_prefill = true) {
    std::vector<std::string> arguments{"gateway", "--port", "0", "--decode", Socket("decode")};
    if (watch_prefill) arguments.insert(arguments.end(), {"--prefill", Socket("prefill")});
    gateway_.emplace(arguments, folder_ + "/gateway.log");
    const std::string mark = "gateway listens on port ";
    ASSERT_TRUE(gateway_->Says(mark)) << gateway_->log();
    const std::string log = gateway_->log();
    port_ = static_cast<uint16_t>(std::atoi(log.c_str() + log.find(mark) + mark.size()));
  }
  std::string Socket(const std::string& role) const { return "unix:" + folder_ + "/" + role + ".sock"; }

  Response Ask(const std::string& bytes) const {
    RawClient client(port_);
    client.Send(bytes);
    return client.Read();
  }
  Response Health() const { return Ask("GET /health HTTP/1.1\r\nHost: test\r\n\r\n"); }
  std::string Metrics() const { return Ask("GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n").body; }
  // Of the decode worker, as the gateway exports it; -1 when it is not there.
  double DecodeMetric(const std::string& name) const {
    const std::string text = Metrics();
    const size_t at = text.find("\ncofferdam_" + name + "{role=\"decode\"");
    return at == std::string::npos ? -1 : std::atof(text.c_str() + text.find("} ", at) + 2);
  }
  Response Question() const {
    const Json message{{"role", "user"}, {"content", "The access code of Anna is 7391. What is the access code of Anna?"}};
    return Ask(http::Post("/v1/chat/completions", Json{{"messages", {message}}, {"temperature", 0}}.dump()));
  }

  std::string folder_;
  std::optional<Process> prefill_, decode_, gateway_;
  uint16_t port_ = 0;
};

TEST_F(ByHand, InAnyOrderTheyFindEachOther) {
  StartGateway();
  EXPECT_EQ(Health().status, 503);
  EXPECT_EQ(Question().status, 503);
  StartDecode("secret");
  EXPECT_TRUE(decode_->Says("ready on")) << decode_->log();
  EXPECT_EQ(Health().status, 503);
  StartPrefill();
  ASSERT_TRUE(Eventually([&] { return Health().status == 200; })) << gateway_->log();
  const Response answer = Question();
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["choices"][0]["message"]["content"], "7391");
}

// A decode worker of which no prefill worker was named needs none, and is judged by itself alone.
TEST_F(ByHand, ADecodeWorkerWithoutPrefillWorkersComputesEveryPromptItself) {
  StartDecodeAlone("secret", {"--context-length", "1024"});
  StartGateway(/*watch_prefill=*/false);
  ASSERT_TRUE(Eventually([&] { return Health().status == 200; })) << gateway_->log();
  const Json health = Health().json();
  EXPECT_EQ(health["max_model_len"], 1024);
  EXPECT_EQ(health["problems"], Json::array());
  EXPECT_EQ(Question().json()["choices"][0]["message"]["content"], "7391");
  ASSERT_TRUE(Eventually([&] { return DecodeMetric("local_prefills_total") == 1; }));
  EXPECT_EQ(DecodeMetric("handoffs_total"), 0);
  EXPECT_EQ(Metrics().find("role=\"prefill\""), std::string::npos) << Metrics();
  for (const auto* process : {&*decode_, &*gateway_})
    EXPECT_EQ(process->log().find("prefill"), std::string::npos) << process->log();
}

TEST_F(ByHand, ASecondWorkerNeverTakesTheSocketOfALivingOneNorAFile) {
  StartPrefill();
  ASSERT_TRUE(prefill_->Says("ready on")) << prefill_->log();
  const Ended second = RunCofferdam({"prefill", "--listen", Socket("prefill"), "--fabric", "shm:" + folder_ + "/other.sock",
                                     "--cluster-secret-file", folder_ + "/secret"});
  EXPECT_GT(second.exit_code, 0);
  EXPECT_NE(second.output.find("another process serves on it"), std::string::npos) << second.output;
  const Ended file =
      RunCofferdam({"decode", "--listen", "unix:" + folder_ + "/secret", "--cluster-secret-file", folder_ + "/secret"});
  EXPECT_NE(file.output.find("something else than a socket"), std::string::npos) << file.output;
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/secret"));
  StartDecode("secret");
  StartGateway();
  ASSERT_TRUE(Eventually([&] { return Health().status == 200; })) << gateway_->log();
  EXPECT_EQ(Question().status, 200);
}

// The pool that a request needs decides where its prompt goes, and a worker that is gone is passed by.
TEST_F(ByHand, OfTwoPrefillWorkersTheOneThatHoldsThePromptIsAsked) {
  StartPrefill({"--kv-tokens", "256", "--shrink-context"});
  Process large({"prefill", "--threads", "1", "--listen", Socket("large"), "--fabric", "shm:" + folder_ + "/large-fabric.sock",
                 "--cluster-secret-file", folder_ + "/secret"},
                folder_ + "/large.log");
  StartDecode("secret", {"--prefill", Socket("large")});
  StartGateway(/*watch_prefill=*/false);
  ASSERT_TRUE(decode_->Says("prefill.sock is connected") && decode_->Says("large.sock is connected")) << decode_->log();
  ASSERT_TRUE(Eventually([&] { return Health().status == 200; })) << gateway_->log();
  for (int i = 0; i < 6; ++i) {
    const std::vector<int> prompt(600, 50 + i);
    EXPECT_EQ(Ask(http::Post("/v1/completions", Json{{"prompt", prompt}, {"max_tokens", 4}}.dump())).status, 200);
    EXPECT_EQ(Question().status, 200);
  }
  prefill_.reset();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Question().status, 200);
}

TEST_F(ByHand, WorkersWithDifferentPageLayoutsRefuseEachOtherAndSayWhy) {
  StartPrefill({"--page-size", "16"});
  StartDecode("secret", {"--page-size", "32"});
  StartGateway();
  ASSERT_TRUE(decode_->Says("page layout")) << decode_->log();
  const Response health = Health();
  EXPECT_EQ(health.status, 503);
  EXPECT_TRUE(Eventually([&] { return Health().body.find("layout") != std::string::npos; })) << Health().body;
  EXPECT_EQ(Question().status, 503);
}

// Seals are keyed with the secret: what one cluster computed is nothing to another, whatever else they agree on.
TEST_F(ByHand, APageThatAnotherSecretSealedIsNeverAdopted) {
  StartPrefill();
  StartDecode("other-secret");
  StartGateway();
  ASSERT_TRUE(Eventually([&] { return Health().status == 200; })) << gateway_->log();
  const Response answer = Question();
  EXPECT_EQ(answer.status, 500) << answer.body;
  EXPECT_EQ(answer.json()["error"]["code"], "kv_integrity_violation") << answer.body;
  // The gateway's copy of the worker's numbers is up to half a second old: the failure must have arrived in it.
  ASSERT_TRUE(Eventually([&] { return DecodeMetric("handoffs_failed_total") > 0; }));
  EXPECT_EQ(DecodeMetric("kv_pages_adopted_total"), 0);
  EXPECT_EQ(Metrics().find("state=\"quarantined\"} 1"), std::string::npos) << "bytes that are whole are nobody's fault";
}

}  // namespace
}  // namespace cofferdam::e2e
