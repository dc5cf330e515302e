// Refusals: by the gateway itself, and by workers, whose words must arrive unchanged.
#include "base/error.h"
#include "fixture.h"

namespace cofferdam::gateway {
namespace {

Json Message(const std::string& role, const Json& content) { return {{"role", role}, {"content", content}}; }

TEST_F(GatewayTest, NamesTheFieldAtFault) {
  Start();
  const std::vector<std::pair<Json, std::string>> cases = {
      {{{"prompt", 5}}, "prompt"},
      {{{"prompt", Json::array()}}, "prompt"},
      {{{"prompt", {"a", "b"}}}, "prompt"},
      {{{"prompt", {1, 99999999}}}, "prompt"},
      {{{"prompt", {1, "a"}}}, "prompt"},
      {{{"prompt", {1, 1.5}}}, "prompt"},
      {{{"prompt", ""}}, "prompt"},
      {Json::object(), "prompt"},
      {{{"prompt", "x"}, {"max_tokens", 0}}, "max_tokens"},
      {{{"prompt", "x"}, {"max_tokens", -1}}, "max_tokens"},
      {{{"prompt", "x"}, {"max_tokens", 1.5}}, "max_tokens"},
      {{{"prompt", "x"}, {"max_tokens", "9"}}, "max_tokens"},
      {{{"prompt", "x"}, {"max_tokens", 18446744073709551615u}}, "max_tokens"},
      {{{"prompt", "x"}, {"temperature", 2.1}}, "temperature"},
      {{{"prompt", "x"}, {"temperature", -0.1}}, "temperature"},
      {{{"prompt", "x"}, {"temperature", "hot"}}, "temperature"},
      {{{"prompt", "x"}, {"top_p", 0}}, "top_p"},
      {{{"prompt", "x"}, {"top_k", -2}}, "top_k"},
      {{{"prompt", "x"}, {"min_p", 1.1}}, "min_p"},
      {{{"prompt", "x"}, {"presence_penalty", 3}}, "presence_penalty"},
      {{{"prompt", "x"}, {"repetition_penalty", 0}}, "repetition_penalty"},
      {{{"prompt", "x"}, {"seed", 1.5}}, "seed"},
      {{{"prompt", "x"}, {"n", 17}}, "n"},
      {{{"prompt", "x"}, {"best_of", 2}}, "best_of"},
      {{{"prompt", "x"}, {"logprobs", 21}}, "logprobs"},
      {{{"prompt", "x"}, {"logprobs", true}}, "logprobs"},
      {{{"prompt", "x"}, {"logprobs", 1}, {"echo", true}}, "logprobs"},
      {{{"prompt", "x"}, {"top_logprobs", 1}}, "top_logprobs"},
      {{{"prompt", "x"}, {"prompt_logprobs", 1}}, "prompt_logprobs"},
      {{{"prompt", "x"}, {"min_tokens", 17}}, "min_tokens"},
      {{{"prompt", "x"}, {"stream", "yes"}}, "stream"},
      {{{"prompt", "x"}, {"stream_options", {{"include_usage", true}}}}, "stream_options"},
      {{{"prompt", "x"}, {"stream", true}, {"stream_options", {{"include_usage", 1}}}}, "stream_options.include_usage"},
      {{{"prompt", "x"}, {"stop", 5}}, "stop"},
      {{{"prompt", "x"}, {"stop", {""}}}, "stop"},
      {{{"prompt", "x"}, {"stop", std::vector<std::string>(17, "a")}}, "stop"},
      {{{"prompt", "x"}, {"stop_token_ids", {-1}}}, "stop_token_ids"},
      {{{"prompt", "x"}, {"logit_bias", {{"99999999", 1}}}}, "logit_bias"},
      {{{"prompt", "x"}, {"logit_bias", {{"5", 101}}}}, "logit_bias"},
      {{{"prompt", "x"}, {"logit_bias", 5}}, "logit_bias"},
      {{{"prompt", "x"}, {"model", 5}}, "model"},
      {{{"prompt", "x"}, {"user", 5}}, "user"},
      {{{"prompt", "x"}, {"suffix", "y"}}, "suffix"},
  };
  for (const auto& [body, param] : cases) {
    const Response response = Complete(body);
    EXPECT_EQ(response.status, 400) << body;
    const Json error = response.json()["error"];
    EXPECT_EQ(error["param"], param) << body << response.body;
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_TRUE(error["message"].is_string());
  }
  EXPECT_NE(Complete({{"prompt", "x"}, {"temperature", 3}}).json()["error"]["message"].get<std::string>().find("from 0 to 2"),
            std::string::npos);
  EXPECT_EQ(worker().calls, 0);
}

TEST_F(GatewayTest, NamesTheMessageAtFault) {
  Start();
  const Json good = Message("user", "x");
  const std::vector<std::pair<Json, std::string>> cases = {
      {{{"messages", "x"}}, "messages"},
      {{{"messages", Json::array()}}, "messages"},
      {Json::object(), "messages"},
      {{{"messages", {good, 5}}}, "messages[1]"},
      {{{"messages", {Message("nobody", "x")}}}, "messages[0].role"},
      {{{"messages", {Message("user", 5)}}}, "messages[0].content"},
      {{{"messages", {Message("user", nullptr)}}}, "messages[0].content"},
      {{{"messages", {Message("user", {{{"type", "image_url"}}})}}}, "messages[0].content"},
      {{{"messages", {good}}, {"tools", {{{"type", "function"}}}}}, "tools"},
      {{{"messages", {good}}, {"response_format", {{"type", "json_object"}}}}, "response_format"},
      {{{"messages", {good}}, {"logprobs", 1}}, "logprobs"},
      {{{"messages", {good}}, {"top_logprobs", 1}}, "top_logprobs"},
      {{{"messages", {good}}, {"logprobs", true}, {"top_logprobs", 21}}, "top_logprobs"},
      {{{"messages", {good}}, {"tool_choice", "required"}}, "tool_choice"},
      {{{"messages", {good}}, {"min_tokens", 5}, {"max_tokens", 4}}, "min_tokens"},
      {{{"messages", {good}}, {"use_beam_search", true}}, "use_beam_search"},
      {{{"messages", {good}}, {"continue_final_message", true}}, "continue_final_message"},
      {{{"messages", {good}}, {"structured_outputs", {{"json", "{}"}}}}, "structured_outputs"},
      {{{"messages", {good}}, {"chat_template", "{{ x }}"}}, "chat_template"},
      {{{"messages", {good}}, {"max_tokens", 5}, {"max_completion_tokens", 6}}, "max_completion_tokens"},
  };
  for (const auto& [body, param] : cases) {
    const Response response = Chat(body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_EQ(response.json()["error"]["param"], param) << body << response.body;
  }
}

TEST_F(GatewayTest, FieldsThatAskForNothingUnusualAreNoReasonToRefuse) {
  Start();
  const Json body{
      {"messages", {Message("user", "x")}}, {"tool_choice", "none"},  {"min_tokens", 0},          {"use_beam_search", false},
      {"continue_final_message", false},    {"tools", Json::array()}, {"chat_template", nullptr}, {"some_new_field", 1}};
  EXPECT_EQ(Chat(body).status, 200);
}

TEST_F(GatewayTest, RefusesBrokenBodies) {
  Start();
  for (const std::string& body : {std::string("{"), std::string("[]"), std::string(""), std::string("nul"),
                                  std::string("{\"prompt\":\"\xFF\"}"), std::string("{\"prompt\":\"\\ud800\"}"),
                                  std::string("{\"prompt\":NaN}"), std::string("{\"prompt\":\"x\",\"temperature\":1e999}"),
                                  std::string(200000, '['), "{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}"}) {
    const Response response = Ask(Post("/v1/completions", body));
    EXPECT_EQ(response.status, 400) << body.substr(0, 50);
    EXPECT_TRUE(response.json()["error"]["message"].is_string());
  }
}

TEST_F(GatewayTest, RefusesWhatDoesNotFitTheContext) {
  Start();
  const Response response = Complete({{"prompt", std::vector<int>(500, 5)}, {"max_tokens", 13}});
  EXPECT_EQ(response.status, 400);
  const Json error = response.json()["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "prompt");
  EXPECT_EQ(error["requested"], 513);
  EXPECT_EQ(error["limit"], 512);
  EXPECT_NE(error["message"].get<std::string>().find("513"), std::string::npos);
  EXPECT_EQ(worker().calls, 0);
  EXPECT_EQ(Complete({{"prompt", std::vector<int>(500, 5)}, {"max_tokens", 12}}).status, 200);
  // Also as a stream: before any header of one.
  const Response stream = Complete({{"prompt", std::vector<int>(600, 5)}, {"stream", true}});
  EXPECT_EQ(stream.status, 400);
  std::string words;
  for (int i = 0; i < 600; ++i) words += "word ";
  const Response chat = Chat({{"messages", {Message("user", words)}}, {"stream", true}});
  EXPECT_EQ(chat.status, 400);
  EXPECT_EQ(chat.json()["error"]["param"], "messages");
  EXPECT_EQ(chat.json()["error"]["code"], "context_length_exceeded");
}

TEST_F(GatewayTest, WorkersRefusalsArriveUnchanged) {
  struct Case {
    grpc::StatusCode code;
    std::string facts;
    int status;
    std::string expected_code;
    std::string retry_after;
  };
  ErrorFacts context{.code = "context_length_exceeded", .param = "messages", .requested = 700, .limit = 600};
  ErrorFacts queue{.code = "queue_full", .retry_after_s = 7};
  const std::vector<Case> cases = {
      {grpc::StatusCode::INVALID_ARGUMENT, SerializeFacts(context), 400, "context_length_exceeded", ""},
      {grpc::StatusCode::RESOURCE_EXHAUSTED, SerializeFacts(queue), 429, "queue_full", "7"},
      {grpc::StatusCode::RESOURCE_EXHAUSTED, "", 429, "queue_full", "1"},
      {grpc::StatusCode::DATA_LOSS, "", 500, "kv_integrity_violation", ""},
      {grpc::StatusCode::DEADLINE_EXCEEDED, "", 504, "timeout", ""},
      {grpc::StatusCode::INTERNAL, "", 500, "internal_error", ""},
      {grpc::StatusCode::UNAVAILABLE, "", 503, "no_worker_available", "1"},
      {grpc::StatusCode::INTERNAL, "rubbish:::", 500, "internal_error", ""},
  };
  Start();
  for (const Case& one : cases) {
    worker().Play([one](Stage&) { return grpc::Status(one.code, "the worker's words", one.facts); });
    for (const bool stream : {false, true}) {
      Response response = Complete({{"prompt", "x"}, {"stream", stream}});
      EXPECT_EQ(response.status, one.status) << response.body;
      const Json error = response.json()["error"];
      EXPECT_EQ(error["code"], one.expected_code);
      EXPECT_EQ(response.headers["retry-after"], one.retry_after);
      // Internal failures keep their words; refusals with facts pass them on.
      EXPECT_EQ(error["message"] == "the worker's words", one.status == 400 || one.status == 429) << error;
    }
  }
  worker().Play([&](Stage&) { return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "too long", SerializeFacts(context)); });
  const Json error = Chat({{"messages", {Message("user", "x")}}}).json()["error"];
  EXPECT_EQ(error["param"], "messages");
  EXPECT_EQ(error["requested"], 700);
  EXPECT_EQ(error["limit"], 600);
  EXPECT_EQ(error["message"], "too long");
  EXPECT_EQ(Complete({{"prompt", "x"}}).json()["error"]["param"], "prompt");
}

TEST_F(GatewayTest, WhatOtherServersHaveAndThisOneHasNotIsSaidPlainly) {
  options_.api_keys = {"sk-one"};
  Start();
  for (const char* path : {"/v1/embeddings", "/v1/rerank", "/v1/responses", "/v1/messages", "/v1/audio/speech"}) {
    EXPECT_EQ(Ask(Post(path, "{}")).status, 401) << path;
    const Response response = Ask(Post(path, "{}", "Authorization: Bearer sk-one\r\n"));
    EXPECT_EQ(response.status, 501) << path;
    EXPECT_EQ(response.json()["error"]["type"], "server_error");
    EXPECT_EQ(response.json()["error"]["code"], "not_implemented");
    EXPECT_NE(response.json()["error"]["message"].get<std::string>().find(path), std::string::npos);
    EXPECT_EQ(response.headers.count("retry-after"), 0u);
  }
  EXPECT_EQ(Ask("GET /v1/files HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer sk-one\r\n\r\n").status, 501);
  EXPECT_EQ(Ask("OPTIONS /v1/files HTTP/1.1\r\nHost: t\r\n\r\n").status, 204);
}

TEST_F(GatewayTest, ChecksKeysAndSeparatesDomains) {
  options_.api_keys = {"sk-one", "sk-two"};
  Start();
  const auto with = [this](const std::string& header) { return Ask(Post("/v1/completions", R"({"prompt":"x"})", header)); };
  EXPECT_EQ(with("").status, 401);
  EXPECT_EQ(with("Authorization: Bearer sk-thr\r\n").status, 401);
  EXPECT_EQ(with("Authorization: Bearer sk-on\r\n").status, 401);
  EXPECT_EQ(with("Authorization: Basic sk-one\r\n").status, 401);
  EXPECT_EQ(with("").json()["error"]["code"], "invalid_api_key");
  EXPECT_EQ(with("Authorization: Bearer sk-one\r\n").status, 200);
  EXPECT_EQ(with("authorization: bearer sk-two\r\n").status, 200);
  EXPECT_EQ(with("Authorization: Bearer sk-one\r\n").status, 200);
  const std::vector<v1::GenerateRequest> requests = worker().requests();
  EXPECT_NE(requests.at(0).domain(), requests.at(1).domain());
  EXPECT_EQ(requests.at(0).domain(), requests.at(2).domain());
  EXPECT_EQ(requests.at(0).domain().size(), 32u);
  EXPECT_EQ(Ask("GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n").status, 401);
  EXPECT_EQ(Ask("GET /health HTTP/1.1\r\nHost: t\r\n\r\n").status, 200);
}

TEST_F(GatewayTest, RefusesByHead) {
  Start();
  const auto ask = [this](const std::string& line, const std::string& headers = "", const std::string& body = "") {
    return Ask(line + " HTTP/1.1\r\nHost: t\r\n" + headers + "\r\n" + body);
  };
  EXPECT_EQ(ask("GET /nothing").status, 404);
  EXPECT_TRUE(ask("GET /nothing").json()["error"]["message"].is_string());
  const Response wrong = ask("GET /v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(ask("DELETE /v1/models").status, 405);
  EXPECT_EQ(ask("OPTIONS /v1/completions").status, 204);
  EXPECT_EQ(ask("OPTIONS *").status, 204);
  EXPECT_EQ(ask("POST /v1/completions", "Content-Type: application/json\r\n").status, 411);
  EXPECT_EQ(ask("POST /v1/completions", "Content-Type: text/plain\r\nContent-Length: 2\r\n", "{}").status, 415);
  EXPECT_EQ(ask("POST /v1/completions", "Content-Encoding: gzip\r\nContent-Length: 2\r\n", "{}").status, 415);
  EXPECT_EQ(ask("POST /v1/completions", "Expect: tea\r\nContent-Length: 2\r\n", "{}").status, 417);
  EXPECT_EQ(
      ask("POST /v1/completions", "Content-Type: application/json; charset=utf-8\r\nContent-Length: 14\r\n", "{\"prompt\":\"x\"}")
          .status,
      200);
  EXPECT_EQ(Complete({{"prompt", "x"}, {"model", "other"}}).status, 404);
  EXPECT_EQ(Complete({{"prompt", "x"}, {"model", "other"}}).json()["error"]["code"], "model_not_found");
}

TEST_F(GatewayTest, LimitsRequestsInFlight) {
  options_.max_queue = 1;
  std::atomic<bool> go{false};
  worker().Play([&](Stage& stage) {
    while (!go && !stage.cancelled()) std::this_thread::sleep_for(2ms);
    stage.Accept();
    return stage.Finish(v1::Finished::LENGTH);
  });
  Start();
  RawClient first(port());
  first.Send(Post("/v1/completions", R"({"prompt":"x"})"));
  ASSERT_TRUE(Eventually([this] { return worker().calls == 1; }));
  EXPECT_EQ(Metric("num_requests_waiting"), 1);
  Response second = Complete({{"prompt", "x"}});
  EXPECT_EQ(second.status, 429);
  EXPECT_EQ(second.json()["error"]["type"], "rate_limit_error");
  EXPECT_FALSE(second.headers["retry-after"].empty());
  go = true;
  EXPECT_EQ(first.Read().status, 200);
  EXPECT_EQ(Complete({{"prompt", "x"}}).status, 200);
}

TEST_F(GatewayTest, IsNotReadyWithoutFittingWorkers) {
  worker().ChangeInfo([](v1::WorkerInfo& info) { info.set_model_hash("another"); });
  StartWithoutWaiting();
  const std::string health = "GET /health HTTP/1.1\r\nHost: t\r\n\r\n";
  ASSERT_TRUE(Eventually([&] { return Ask(health).body.find("another") != std::string::npos; }));
  EXPECT_EQ(Ask(health).status, 503);
  Response refused = Complete({{"prompt", "x"}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json()["error"]["code"], "no_worker_available");
  EXPECT_FALSE(refused.headers["retry-after"].empty());
}

TEST_F(GatewayTest, LayoutsMustAgree) {
  AddWorker().ChangeInfo([](v1::WorkerInfo& info) {
    info.mutable_layout()->set_layout_id("fedcba9876543210");
    info.mutable_layout()->set_description("layout B");
  });
  StartWithoutWaiting();  // the first worker is also the prefill worker
  const std::string health = "GET /health HTTP/1.1\r\nHost: t\r\n\r\n";
  ASSERT_TRUE(Eventually([&] { return Ask(health).body.find("layout B") != std::string::npos; }));
  EXPECT_NE(Ask(health).body.find("layout A"), std::string::npos);
  EXPECT_EQ(Ask(health).json()["decode_workers"], 1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Complete({{"prompt", "x"}}).status, 200);
  EXPECT_EQ(worker(1).calls, 0);
}

TEST_F(GatewayTest, TheSmallestContextIsAdvertised) {
  AddWorker().ChangeInfo([](v1::WorkerInfo& info) { info.set_context_tokens(100); });
  Start();
  EXPECT_EQ(Ask("GET /v1/models/test HTTP/1.1\r\nHost: t\r\n\r\n").json()["max_model_len"], 100);
  EXPECT_EQ(Complete({{"prompt", std::vector<int>(100, 5)}}).json()["error"]["limit"], 100);
}

}  // namespace
}  // namespace cofferdam::gateway
