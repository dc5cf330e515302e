// What clients get when all is well.
#include "fixture.h"

namespace cofferdam::gateway {
namespace {

TEST_F(GatewayTest, CompletesText) {
  worker().Play(Says(Tokens("once upon a time")));
  Start();
  const Response response = Complete({{"model", "test"}, {"prompt", "Tell me"}, {"max_tokens", 20}});
  ASSERT_EQ(response.status, 200) << response.body;
  const Json json = response.json();
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["choices"][0]["text"], " once upon a time");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3);  // with BOS
  EXPECT_EQ(json["usage"]["completion_tokens"], 4);
  EXPECT_EQ(json["usage"]["total_tokens"], 7);
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("cmpl-"));
  const v1::GenerateRequest request = worker().requests().at(0);
  EXPECT_EQ(request.max_tokens(), 20u);
  EXPECT_EQ(request.domain(), "default");
  EXPECT_EQ(request.attempt().counter(), 1u);
  EXPECT_NE(request.attempt().boot_id(), 0u);
  EXPECT_EQ(request.stop_tokens_size(), 1);
}

TEST_F(GatewayTest, StreamsText) {
  worker().Play(Says(Tokens("once upon a time"), v1::Finished::LENGTH));
  Start();
  const Response response = Complete({{"prompt", "x"}, {"stream", true}, {"stream_options", {{"include_usage", true}}}});
  ASSERT_EQ(response.status, 200);
  EXPECT_TRUE(response.complete);
  EXPECT_TRUE(response.headers.at("content-type").starts_with("text/event-stream"));
  EXPECT_EQ(TextOf(response.body), " once upon a time");
  EXPECT_EQ(FinishReasonOf(response.body), "length");
  const std::vector<std::string> events = EventsOf(response.body);
  EXPECT_EQ(events.back(), "[DONE]");
  const Json usage = Json::parse(events.at(events.size() - 2));
  EXPECT_EQ(usage["usage"]["completion_tokens"], 4);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_TRUE(Json::parse(events.front())["usage"].is_null());
}

TEST_F(GatewayTest, Chats) {
  Start();
  const Json parts = Json::array({{{"type", "text"}, {"text", "Hi "}}, {{"type", "text"}, {"text", "there"}}});
  const Json messages = Json::array({{{"role", "system"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", parts}}});
  const Response whole = Chat({{"model", "test"}, {"messages", messages}});
  ASSERT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(whole.json()["object"], "chat.completion");
  EXPECT_EQ(whole.json()["choices"][0]["message"]["content"], " hello");
  EXPECT_EQ(whole.json()["choices"][0]["message"]["role"], "assistant");
  const v1::GenerateRequest request = worker().requests().at(0);
  // No max_tokens: what is left of the context.
  EXPECT_EQ(request.max_tokens() + static_cast<uint32_t>(request.tokens_size()), 512u);
  const std::vector<TokenId> tokens(request.tokens().begin(), request.tokens().end());
  EXPECT_NE(tokenizer().Detokenize(tokens, false).find("Be brief."), std::string::npos);

  const Response stream = Chat({{"messages", messages}, {"stream", true}, {"max_completion_tokens", 5}});
  ASSERT_EQ(stream.status, 200);
  EXPECT_EQ(TextOf(stream.body), " hello");
  EXPECT_EQ(Json::parse(EventsOf(stream.body).front())["choices"][0]["delta"]["role"], "assistant");
  const auto fingerprint = whole.json()["system_fingerprint"].get<std::string>();
  EXPECT_EQ(fingerprint.substr(0, 3), "fp_");
  EXPECT_EQ(Json::parse(EventsOf(stream.body).front())["system_fingerprint"], fingerprint);
  EXPECT_EQ(worker().requests().at(1).max_tokens(), 5u);
}

TEST_F(GatewayTest, TakesPromptsInEveryShape) {
  Start();
  for (const Json& prompt :
       {Json("Hello"), Json::array({"Hello"}), Json::array({1, 15043}), Json::array({Json::array({1, 15043})})}) {
    const Response response = Complete({{"prompt", prompt}});
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(worker().requests().back().tokens_size(), 2) << prompt;
  }
  EXPECT_EQ(Complete({{"prompt", "Hello"}, {"echo", true}}).json()["choices"][0]["text"], "Hello hello");
  EXPECT_EQ(Complete({{"prompt", Json::array({1, 15043})}, {"echo", true}}).json()["choices"][0]["text"], "Hello hello");
}

TEST_F(GatewayTest, PassesSamplingOn) {
  Start();
  const Json body = {{"prompt", "x"},
                     {"temperature", 0.5},
                     {"top_k", 7},
                     {"top_p", 0.25},
                     {"min_p", 0.125},
                     {"seed", -3},
                     {"presence_penalty", 1.5},
                     {"frequency_penalty", -1.5},
                     {"repetition_penalty", 1.25},
                     {"logit_bias", {{"5", 10}}},
                     {"stop_token_ids", {9}},
                     {"ignore_eos", true},
                     {"attempt", {{"counter", 9}}},
                     {"domain", "mine"},
                     {"unknown", 1}};
  ASSERT_EQ(Complete(body).status, 200);
  const v1::GenerateRequest request = worker().requests().at(0);
  EXPECT_EQ(request.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.sampling().top_k(), 7);
  EXPECT_EQ(request.sampling().top_p(), 0.25f);
  EXPECT_EQ(request.sampling().min_p(), 0.125f);
  EXPECT_EQ(request.sampling().seed(), static_cast<uint64_t>(-3));
  EXPECT_EQ(request.sampling().presence_penalty(), 1.5f);
  EXPECT_EQ(request.sampling().frequency_penalty(), -1.5f);
  EXPECT_EQ(request.sampling().repetition_penalty(), 1.25f);
  EXPECT_EQ(request.sampling().bias_tokens(0), 5);
  EXPECT_EQ(request.sampling().bias_values(0), 10.0f);
  ASSERT_EQ(request.stop_tokens_size(), 1);
  EXPECT_EQ(request.stop_tokens(0), 9);
  // What is internal is never read from a client.
  EXPECT_EQ(request.domain(), "default");
  EXPECT_EQ(request.attempt().counter(), 1u);
}

TEST_F(GatewayTest, SeedsDifferUnlessGiven) {
  Start();
  Complete({{"prompt", "x"}});
  Complete({{"prompt", "x"}});
  EXPECT_NE(worker().requests().at(0).sampling().seed(), worker().requests().at(1).sampling().seed());
}

TEST_F(GatewayTest, StopsAtAStringAcrossTokens) {
  std::vector<TokenId> tokens;
  for (const char c : std::string("abcENDdef")) tokens.push_back(Tokens(std::string("x") + c).back());
  worker().Play([this, tokens](Stage& stage) {
    stage.Accept();
    for (const TokenId token : tokens) stage.Token(token);
    // The gateway ends the call; nobody asked for more.
    return stage.AwaitCancel(2000ms) ? grpc::Status::CANCELLED : stage.Finish(v1::Finished::STOP);
  });
  Start();
  const Response stream = Complete({{"prompt", "x"}, {"stop", {"END", "never"}}, {"stream", true}, {"max_tokens", 50}});
  ASSERT_EQ(stream.status, 200);
  EXPECT_EQ(FinishReasonOf(stream.body), "stop");
  EXPECT_EQ(EventsOf(stream.body).back(), "[DONE]");
  const std::string text = TextOf(stream.body);
  EXPECT_TRUE(text.ends_with("abc")) << text;
  EXPECT_TRUE(Eventually([this] { return worker().cancels == 1; }));
  EXPECT_EQ(Complete({{"prompt", "x"}, {"stop", "END"}, {"max_tokens", 50}}).json()["choices"][0]["text"], text);
}

TEST_F(GatewayTest, NeverSplitsACharacter) {
  // In this vocabulary the emoji is four byte tokens.
  std::vector<TokenId> tokens;
  for (const unsigned byte : {0xF0u, 0x9Fu, 0x98u, 0x80u}) tokens.push_back(static_cast<TokenId>(byte + 3));
  std::vector<TokenId> cut(tokens.begin(), tokens.begin() + 2);
  worker().Play(Says(tokens));
  Start();
  const Response stream = Complete({{"prompt", "x"}, {"stream", true}});
  EXPECT_EQ(TextOf(stream.body), "\xF0\x9F\x98\x80");
  EXPECT_EQ(EventsOf(stream.body).size(), 3u);  // the character, the end, [DONE]
  worker().Play(Says(cut, v1::Finished::LENGTH));
  EXPECT_EQ(TextOf(Complete({{"prompt", "x"}, {"stream", true}}).body), "\xEF\xBF\xBD");
}

TEST_F(GatewayTest, TheEndTokenIsNoText) {
  std::vector<TokenId> tokens = Tokens("hello");
  tokens.push_back(2);
  worker().Play(Says(tokens));
  Start();
  const Json json = Complete({{"prompt", "x"}}).json();
  EXPECT_EQ(json["choices"][0]["text"], " hello");
  EXPECT_EQ(json["usage"]["completion_tokens"], 2);
}

TEST_F(GatewayTest, AnswersTheSmallRoutes) {
  Start();
  const auto get = [this](const std::string& path) { return Ask("GET " + path + " HTTP/1.1\r\nHost: test\r\n\r\n"); };
  EXPECT_EQ(get("/v1/models").json()["data"][0]["id"], "test");
  EXPECT_EQ(get("/v1/models/test").json()["max_model_len"], 512);
  EXPECT_EQ(get("/v1/models/other").status, 404);
  EXPECT_EQ(get("/v1/models/other").json()["error"]["code"], "model_not_found");
  EXPECT_FALSE(get("/version").json()["version"].get<std::string>().empty());
  EXPECT_EQ(get("/ready").status, 200);
  const Json tokens = Ask(Post("/tokenize", R"({"prompt":"Hello world"})")).json();
  EXPECT_EQ(tokens["tokens"], Json({1, 15043, 3186}));
  EXPECT_EQ(tokens["count"], 3);
  EXPECT_EQ(tokens["max_model_len"], 512);
  EXPECT_GT(Ask(Post("/tokenize", R"({"messages":[{"role":"user","content":"Hi"}]})")).json()["count"], 5);
  EXPECT_EQ(Ask(Post("/detokenize", R"({"tokens":[15043,3186]})")).json()["prompt"], "Hello world");
  EXPECT_EQ(Ask(Post("/detokenize", R"({"tokens":[-1]})")).json()["error"]["param"], "tokens");
}

TEST_F(GatewayTest, ShowsMetricsOfItselfAndItsWorkers) {
  worker().ChangeInfo([](v1::WorkerInfo& info) {
    v1::Metric* metric = info.add_metrics();
    metric->set_name("pages");
    metric->set_kind(v1::Metric::GAUGE);
    metric->set_value(7);
    metric->add_label_names("state");
    metric->add_label_values("fr\"ee");
    info.add_metrics()->set_name("bad name");
  });
  Start();
  Complete({{"prompt", "x"}});
  // A request is counted once its answer has been sent, which its client may see first.
  std::string text;
  EXPECT_TRUE(Eventually([&] {
    text = Ask("GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n").body;
    return text.find("cofferdam_requests_total{route=\"/v1/completions\",status=\"200\"} 1") != std::string::npos;
  })) << text;
  EXPECT_NE(text.find("cofferdam_pages{role=\"decode\",worker=\"" + worker().address() + "\",state=\"fr\\\"ee\"} 7"),
            std::string::npos);
  EXPECT_NE(text.find("cofferdam_time_to_first_token_seconds_count 1"), std::string::npos);
  EXPECT_EQ(text.find("bad name"), std::string::npos);
  EXPECT_EQ(Metric("generation_tokens_total"), 1);
  EXPECT_EQ(Metric("num_requests_running"), 0);
}

}  // namespace
}  // namespace cofferdam::gateway
