// A gateway with a key file: who gets in, to which models, how often, how much at a time, and what changes without a restart.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fixture.h"
#include "gateway/key_file.h"

namespace cofferdam::gateway {
namespace {

class KeysTest : public GatewayTest {
 protected:
  void SetUp() override {
    GatewayTest::SetUp();
    path_ = testing::TempDir() + "keys_test-" + std::to_string(getpid()) + ".json";
    options_.key_file = path_;
    options_.key_file_interval = 20ms;
    options_.served_model_names = {"large", "small"};
  }
  void TearDown() override {
    GatewayTest::TearDown();
    std::filesystem::remove(path_);
  }

  // The key of a record is its id.
  static KeyRecord Record(const std::string& id, const std::string& tenant) {
    return {.id = id, .hash = HashOfKey(id), .tenant = tenant, .domain = tenant};
  }
  void Write(const std::vector<KeyRecord>& records) const {
    std::ofstream(path_ + ".new") << RenderKeyFile(records);
    std::filesystem::rename(path_ + ".new", path_);
  }
  static std::string Header(const std::string& key) { return "Authorization: Bearer " + key + "\r\n"; }
  Response Get(const std::string& path, const std::string& key) {
    return Ask("GET " + path + " HTTP/1.1\r\nHost: test\r\n" + Header(key) + "\r\n");
  }
  Response CompleteAs(const std::string& key, const Json& body) { return Ask(Post("/v1/completions", body.dump(), Header(key))); }
  // Accepts and then waits until the client goes away.
  Script Hangs() {
    return [](Stage& stage) {
      stage.Accept();
      stage.Token(100);
      stage.AwaitCancel(60s);
      return grpc::Status::CANCELLED;
    };
  }

  std::string path_;
  const Json body_{{"prompt", "x"}};
};

TEST_F(KeysTest, KeysOfATenantShareItsDomainAndOthersDoNot) {
  KeyRecord apart = Record("a-3", "acme");
  apart.domain = "acme-apart";
  Write({Record("a-1", "acme"), Record("a-2", "acme"), apart, Record("b-1", "bolt")});
  Start();
  for (const char* key : {"a-1", "a-2", "a-3", "b-1"}) EXPECT_EQ(CompleteAs(key, body_).status, 200) << key;
  EXPECT_EQ(CompleteAs("c-1", body_).status, 401);
  const std::vector<v1::GenerateRequest> requests = worker().requests();
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_EQ(requests[0].domain(), "acme");
  EXPECT_EQ(requests[1].domain(), "acme");
  EXPECT_EQ(requests[2].domain(), "acme-apart");
  EXPECT_EQ(requests[3].domain(), "bolt");
}

TEST_F(KeysTest, AKeyIsMadeAndRevokedWithoutARestart) {
  Write({});
  Start();
  EXPECT_EQ(CompleteAs("a-1", body_).status, 401) << "a file without keys lets nobody in";
  Write({Record("a-1", "acme")});
  EXPECT_TRUE(Eventually([this] { return CompleteAs("a-1", body_).status == 200; }));
  std::ofstream(path_) << "{ a mistake";
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(CompleteAs("a-1", body_).status, 200) << "a mistake in the file locks nobody out";
  Write({Record("b-1", "bolt")});
  EXPECT_TRUE(Eventually([this] { return CompleteAs("a-1", body_).status == 401; }));
}

TEST_F(KeysTest, AModelThatIsNotAllowedIsForbiddenAndNotListed) {
  KeyRecord record = Record("a-1", "acme");
  record.models = {"small"};
  KeyRecord none = Record("n-1", "none");
  none.models = {"no-longer-served"};
  Write({record, none, Record("b-1", "bolt")});
  Start();
  const auto ask = [this](const std::string& key, const std::string& model) {
    return CompleteAs(key, {{"prompt", "x"}, {"model", model}});
  };
  EXPECT_EQ(ask("a-1", "small").status, 200);
  const Response refused = ask("a-1", "large");
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.json()["error"]["type"], "permission_error");
  EXPECT_EQ(refused.json()["error"]["code"], "model_not_allowed");
  EXPECT_EQ(refused.json()["error"]["param"], "model");
  EXPECT_EQ(ask("a-1", "huge").status, 404);
  EXPECT_EQ(ask("b-1", "large").status, 200);
  EXPECT_EQ(CompleteAs("a-1", body_).json()["model"], "small") << "the default is one that the key may use";
  EXPECT_EQ(CompleteAs("b-1", body_).json()["model"], "large");
  EXPECT_EQ(CompleteAs("n-1", body_).status, 403);
  EXPECT_EQ(Get("/v1/models", "a-1").json()["data"].size(), 1u);
  EXPECT_EQ(Get("/v1/models", "b-1").json()["data"].size(), 2u);
  EXPECT_EQ(Get("/v1/models/large", "a-1").status, 403);
  EXPECT_EQ(Get("/v1/models/small", "a-1").status, 200);
  EXPECT_EQ(Ask(Post("/tokenize", R"({"prompt":"x","model":"large"})", Header("a-1"))).status, 403);
  EXPECT_EQ(Ask(Post("/tokenize", R"({"prompt":"x"})", Header("a-1"))).status, 200);
}

TEST_F(KeysTest, RequestsOfAMinuteAreLimitedBeforeTheBodyIsRead) {
  KeyRecord record = Record("a-1", "acme");
  record.limits.requests_per_minute = 2;
  Write({record, Record("a-2", "acme")});
  Start();
  const Response first = CompleteAs("a-1", body_);
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.headers.at("x-ratelimit-limit-requests"), "2");
  EXPECT_EQ(first.headers.at("x-ratelimit-remaining-requests"), "1");
  EXPECT_EQ(first.headers.count("x-ratelimit-limit-tokens"), 0u) << "tokens have no limit";
  EXPECT_EQ(CompleteAs("a-1", {{"prompt", 5}}).status, 400) << "wrong ones count as well";
  const Response refused = CompleteAs("a-1", body_);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.json()["error"]["code"], "rate_limit_exceeded");
  EXPECT_EQ(refused.json()["error"]["type"], "rate_limit_error");
  const int wait = std::stoi(refused.headers.at("retry-after"));
  EXPECT_GE(wait, 25);
  EXPECT_LE(wait, 31);
  EXPECT_EQ(refused.headers.at("x-ratelimit-remaining-requests"), "0");
  EXPECT_EQ(Get("/v1/models", "a-1").status, 200) << "what is not computed is not counted";
  EXPECT_EQ(CompleteAs("a-2", body_).status, 200) << "another key has limits of its own";
  EXPECT_EQ(worker().requests().size(), 2u);
}

TEST_F(KeysTest, TokensOfPromptsAndAnswersCount) {
  KeyRecord record = Record("a-1", "acme");
  record.limits.tokens_per_minute = 400;
  Write({record});
  Start();
  const std::vector<TokenId> answer = Tokens("one two three four five");
  worker().Play(Says(answer));
  const std::vector<TokenId> prompt(100, 5);
  for (const bool stream : {false, true}) {
    const Response response = CompleteAs("a-1", {{"prompt", prompt}, {"stream", stream}, {"max_tokens", 50}});
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_TRUE(response.headers.contains("x-ratelimit-remaining-tokens"));
  }
  const std::vector<TokenId> rest(300, 5);
  const Response refused = CompleteAs("a-1", {{"prompt", rest}, {"max_tokens", 1}});
  EXPECT_EQ(refused.status, 429) << "two requests have used more than half";
  EXPECT_EQ(refused.json()["error"]["code"], "rate_limit_exceeded");
  const int remaining = std::stoi(refused.headers.at("x-ratelimit-remaining-tokens"));
  const int used = 200 + 2 * static_cast<int>(answer.size());
  EXPECT_GE(remaining, 400 - used);
  EXPECT_LT(remaining, 300) << "7 come back in a second";
}

TEST_F(KeysTest, WhatAWorkerRefusesCostsNoTokens) {
  KeyRecord record = Record("a-1", "acme");
  record.limits.tokens_per_minute = 150;
  Write({record});
  Start();
  const std::vector<TokenId> prompt(100, 5);
  worker().Play([](Stage&) { return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no"); });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(CompleteAs("a-1", {{"prompt", prompt}, {"max_tokens", 1}}).status, 400);
  worker().Play(Says(Tokens("hello")));
  EXPECT_EQ(CompleteAs("a-1", {{"prompt", prompt}, {"max_tokens", 1}}).status, 200);
}

TEST_F(KeysTest, AnswersAtATimeAreLimitedAndGivenBackWhenTheClientGoes) {
  KeyRecord record = Record("a-1", "acme");
  record.limits.concurrency = 2;
  Write({record, Record("a-2", "acme")});
  worker().Play(Hangs());
  Start();
  const std::string stream = Post("/v1/completions", R"({"prompt":"x","stream":true,"n":2})", Header("a-1"));
  {
    RawClient holder(port());
    holder.Send(stream);
    holder.ReadUntil("\"index\":0");
    const Response refused = CompleteAs("a-1", body_);
    EXPECT_EQ(refused.status, 429);
    EXPECT_EQ(refused.json()["error"]["code"], "rate_limit_exceeded");
    EXPECT_EQ(refused.headers.at("retry-after"), "1");
    const Response never = CompleteAs("a-1", {{"prompt", "x"}, {"n", 3}});
    EXPECT_EQ(never.status, 400);
    EXPECT_EQ(never.json()["error"]["param"], "n");
  }
  worker().Play(Says(Tokens("hello")));
  EXPECT_EQ(CompleteAs("a-2", body_).status, 200);
  EXPECT_TRUE(Eventually([this] { return CompleteAs("a-1", body_).status == 200; })) << "a client that went gives back";
  EXPECT_EQ(CompleteAs("a-1", {{"prompt", "x"}, {"n", 2}}).status, 200);
}

TEST_F(KeysTest, AnAnswerThatIsMadeHoldsNoneOfTheLimitsHoweverSlowlyItIsRead) {
  KeyRecord record = Record("a-1", "acme");
  record.limits.concurrency = 1;
  Write({record});
  options_.max_queue = 1;
  options_.write_timeout = 10min;
  worker().ChangeInfo([](v1::WorkerInfo& info) { info.set_context_tokens(2'000'000); });
  Start();
  RawClient slow(port(), 4096);
  // The answer repeats a prompt that no buffer of a socket holds.
  const std::vector<TokenId> prompt(1'000'000, 15043);
  slow.Send(Post("/v1/completions", Json{{"prompt", prompt}, {"echo", true}, {"max_tokens", 1}}.dump(), Header("a-1")));
  ASSERT_TRUE(Eventually([this] { return worker().calls == 1; }, 60000ms));
  EXPECT_TRUE(Eventually([this] { return CompleteAs("a-1", body_).status == 200; }));
  EXPECT_EQ(slow.Read().status, 200) << "which was not read until now";
}

TEST_F(KeysTest, TheContextOfAKeyIsJudgedBeforeAnyWorkerSeesTheRequest) {
  KeyRecord record = Record("a-1", "acme");
  record.limits.context_tokens = 40;
  record.priority = 50;
  Write({record});
  Start();
  const std::vector<TokenId> prompt(30, 5);
  const Response refused = CompleteAs("a-1", {{"prompt", prompt}, {"max_tokens", 11}});
  EXPECT_EQ(refused.status, 400);
  const Json error = refused.json()["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["requested"], 41);
  EXPECT_EQ(error["limit"], 40);
  EXPECT_NE(error["message"].get<std::string>().find("This API key"), std::string::npos) << error;
  EXPECT_TRUE(worker().requests().empty());
  EXPECT_EQ(Get("/v1/models/large", "a-1").json()["max_model_len"], 40);
  EXPECT_EQ(CompleteAs("a-1", {{"prompt", prompt}, {"max_tokens", 10}, {"priority", 20}}).status, 200);
  EXPECT_EQ(worker().requests().at(0).priority(), 60u) << "the key's and the request's, up to what workers take";
  const std::string chat = Json{{"messages", {{{"role", "user"}, {"content", "x"}}}}}.dump();
  EXPECT_EQ(Ask(Post("/v1/chat/completions", chat, Header("a-1"))).status, 200);
  const v1::GenerateRequest last = worker().requests().at(1);
  EXPECT_EQ(last.max_tokens() + static_cast<uint32_t>(last.tokens_size()), 40u) << "without max_tokens: what the key allows";
  EXPECT_EQ(last.priority(), 50u);
}

TEST_F(KeysTest, AFileThatIsWrongAtTheStartIsRefused) {
  for (const char* text : {"", "{\"keys\": [{}]}"}) {
    std::ofstream(path_) << text;
    options_.decode_addresses = {worker().address()};
    EXPECT_TRUE(absl::IsInvalidArgument(Gateway::Create(options_).status())) << text;
  }
  std::filesystem::remove(path_);
  EXPECT_TRUE(absl::IsNotFound(Gateway::Create(options_).status()));
}

}  // namespace
}  // namespace cofferdam::gateway
