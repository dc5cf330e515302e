// Clients that leave, workers that die or talk nonsense.
#include "fixture.h"

namespace cofferdam::gateway {
namespace {

const std::string kStream = R"({"prompt":"x","stream":true,"max_tokens":100})";

// Sends a token now and then, until the call is cancelled.
grpc::Status TalkOn(Stage& stage) {
  stage.Accept();
  stage.Token(5);
  return stage.AwaitCancel(5000ms) ? grpc::Status::CANCELLED : stage.Finish(v1::Finished::LENGTH);
}

class Disconnect : public GatewayTest, public testing::WithParamInterface<std::string> {
 protected:
  void Leave(RawClient& client) {
    if (GetParam() == "half-close") {
      client.HalfClose();
    } else if (GetParam() == "reset") {
      client.Reset();
    }
  }
};

TEST_P(Disconnect, WhileStreamingCancels) {
  worker().Play(TalkOn);
  Start();
  RawClient client(port());
  client.Send(Post("/v1/completions", kStream));
  client.ReadUntil("data:");
  const auto left = std::chrono::steady_clock::now();
  Leave(client);
  ASSERT_TRUE(Eventually([this] { return worker().cancels == 1; }));
  EXPECT_LT(std::chrono::steady_clock::now() - left, 1s);
  EXPECT_TRUE(Eventually([this] { return Metric("client_disconnects_total") == 1; }));
}

TEST_P(Disconnect, WhileWaitingForAWholeAnswerCancels) {
  worker().Play(TalkOn);
  Start();
  RawClient client(port());
  client.Send(Post("/v1/completions", R"({"prompt":"x"})"));
  ASSERT_TRUE(Eventually([this] { return worker().calls == 1; }));
  std::this_thread::sleep_for(50ms);
  Leave(client);
  EXPECT_TRUE(Eventually([this] { return worker().cancels == 1; }, 1000ms));
}

TEST_P(Disconnect, InTheQueueCancels) {
  worker().Play([](Stage& stage) { return stage.AwaitCancel(5000ms) ? grpc::Status::CANCELLED : grpc::Status::OK; });
  Start();
  RawClient client(port());
  client.Send(Post("/v1/completions", kStream));
  ASSERT_TRUE(Eventually([this] { return worker().calls == 1; }));
  Leave(client);
  EXPECT_TRUE(Eventually([this] { return worker().cancels == 1; }, 1000ms));
  EXPECT_TRUE(Eventually([this] { return Metric("num_requests_waiting") == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Ways, Disconnect, testing::Values("half-close", "reset"));

TEST_F(GatewayTest, ADisconnectBehindAFullBufferIsSeen) {
  worker().Play(TalkOn);
  options_.max_pipelined_bytes = 4096;
  Start();
  RawClient client(port());
  client.Send(Post("/v1/completions", kStream));
  client.ReadUntil("data:");
  client.Send(std::string(60000, 'x'));
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(worker().cancels, 0);
  client.Reset();
  EXPECT_TRUE(Eventually([this] { return worker().cancels == 1; }, 1500ms));
}

TEST_F(GatewayTest, I8StaleMessagesHaveNoEffect) {
  worker().Play([this](Stage& stage) {
    const TokenId right = Tokens("hello").back();
    const TokenId wrong = Tokens("secret").back();
    v1::GenerateEvent early = stage.TokenEvent(0, wrong);
    stage.Send(early);  // before Accepted
    stage.Accept();
    v1::GenerateEvent other_counter = stage.TokenEvent(0, wrong);
    other_counter.mutable_attempt()->set_counter(stage.request().attempt().counter() + 1);
    stage.Send(other_counter);
    v1::GenerateEvent other_boot = stage.TokenEvent(0, wrong);
    other_boot.mutable_attempt()->set_boot_id(1);
    stage.Send(other_boot);
    v1::GenerateEvent finished = other_boot;
    finished.mutable_finished()->set_reason(v1::Finished::LENGTH);
    stage.Send(finished);
    stage.Send(stage.TokenEvent(1, wrong));
    stage.Send(stage.TokenEvent(0, right));
    stage.Send(stage.TokenEvent(0, wrong));  // doubled
    v1::GenerateEvent end = stage.TokenEvent(0, wrong);
    end.mutable_finished()->set_reason(v1::Finished::STOP);
    end.mutable_finished()->set_generated_tokens(1);
    stage.Send(end);
    return grpc::Status::OK;
  });
  Start();
  EXPECT_EQ(Complete({{"prompt", "x"}}).json()["choices"][0]["text"], " hello");
  EXPECT_EQ(Metric("stale_messages_total"), 6);
}

TEST_F(GatewayTest, I5AnotherAcceptedLengthIsAnError) {
  worker().Play([](Stage& stage) {
    v1::GenerateEvent event;
    *event.mutable_attempt() = stage.request().attempt();
    event.mutable_accepted()->set_prompt_tokens(1);
    stage.Send(event);
    for (int i = 0; i < 5; ++i) stage.Token(5);
    return stage.Finish(v1::Finished::STOP);
  });
  Start();
  const Response response = Complete({{"prompt", "Hello world"}, {"stream", true}});
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(response.json()["error"]["code"], "kv_integrity_violation");
}

TEST_F(GatewayTest, LostTokensAreNotAShortAnswer) {
  worker().Play([](Stage& stage) {
    stage.Accept();
    stage.Token(5);
    stage.Token(5);
    v1::GenerateEvent end = stage.TokenEvent(0, 0);
    end.mutable_finished()->set_reason(v1::Finished::STOP);
    end.mutable_finished()->set_generated_tokens(3);
    stage.Send(end);
    return grpc::Status::OK;
  });
  Start();
  EXPECT_EQ(Complete({{"prompt", "x"}}).status, 500);
}

TEST_F(GatewayTest, AStreamWithoutFinishedHasFailed) {
  worker().Play([](Stage& stage) {
    stage.Accept();
    stage.Token(5);
    return grpc::Status::OK;
  });
  Start();
  const Response response = Complete({{"prompt", "x"}, {"stream", true}, {"max_tokens", 9}});
  EXPECT_EQ(response.status, 200);
  const std::vector<std::string> events = EventsOf(response.body);
  EXPECT_EQ(Json::parse(events.back())["error"]["code"], "no_worker_available");
  EXPECT_EQ(response.body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(Complete({{"prompt", "x"}, {"max_tokens", 9}}).status, 503);
}

TEST_F(GatewayTest, RetriesBeforeTheFirstToken) {
  std::atomic<int> failures{2};
  worker().Play([&, good = Says(Tokens("hello"))](Stage& stage) {
    if (failures-- > 0) {
      stage.Accept();
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
    }
    return good(stage);
  });
  Start();
  const Response response = Complete({{"prompt", "x"}, {"stream", true}});
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(TextOf(response.body), " hello");
  const std::vector<v1::GenerateRequest> requests = worker().requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_LT(requests[0].attempt().counter(), requests[1].attempt().counter());
  EXPECT_LT(requests[1].attempt().counter(), requests[2].attempt().counter());
  EXPECT_EQ(requests[0].request_id(), requests[2].request_id());
  EXPECT_EQ(Metric("retries_total"), 2);
}

TEST_F(GatewayTest, RetriesAtMostTwice) {
  worker().Play([](Stage&) { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"); });
  Start();
  const Response response = Complete({{"prompt", "x"}});
  EXPECT_EQ(response.status, 503);
  EXPECT_FALSE(response.headers.at("retry-after").empty());
  EXPECT_EQ(worker().calls, 3);
}

TEST_F(GatewayTest, RetriesShareABudget) {
  worker().Play([](Stage&) { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"); });
  Start();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Complete({{"prompt", "x"}}).status, 503);
  EXPECT_LE(worker().calls, 20 + 12);
  EXPECT_GT(Metric("retries_refused_total"), 0);
}

TEST_F(GatewayTest, AnotherWorkerGoesOnAfterADeath) {
  const std::vector<TokenId> words = Tokens("once upon a time");
  const Script script = [words](Stage& stage) {
    stage.Accept();
    const size_t resumed = stage.request().resumed_tokens();
    if (resumed == 0) {
      stage.Token(words[0]);
      stage.Token(words[1]);
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "died");
    }
    for (size_t i = resumed; i < words.size(); ++i) stage.Token(words[i]);
    return stage.Finish(v1::Finished::STOP);
  };
  worker().Play(script);
  AddWorker().Play(script);
  Start();
  const Response response = Complete({{"prompt", "x"}, {"stream", true}, {"max_tokens", 10}});
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(TextOf(response.body), " once upon a time");
  EXPECT_EQ(worker(0).calls + worker(1).calls, 2);
  EXPECT_EQ(worker(0).calls, 1);
  for (size_t i : {0u, 1u}) {
    const v1::GenerateRequest request = worker(i).requests().at(0);
    if (request.resumed_tokens() == 0) continue;
    EXPECT_EQ(request.resumed_tokens(), 2u);
    EXPECT_EQ(request.max_tokens(), 8u);
    EXPECT_EQ(request.tokens(request.tokens_size() - 1), words[1]);
  }
  EXPECT_EQ(Metric("resumed_total"), 1);
}

TEST_F(GatewayTest, ADeadProcessIsAnErrorFrame) {
  worker().Play(TalkOn);
  Start();
  RawClient client(port());
  client.Send(Post("/v1/completions", kStream));
  client.ReadUntil("data:");
  worker().Shutdown();
  const Response response = client.Read();
  EXPECT_EQ(Json::parse(EventsOf(response.body).back())["error"]["type"], "server_error");
  EXPECT_TRUE(client.AwaitEnd());
  EXPECT_TRUE(Eventually([this] { return Ask("GET /health HTTP/1.1\r\nHost: t\r\n\r\n").status == 503; }));
}

TEST_F(GatewayTest, ASilentWorkerIsGivenUp) {
  const std::vector<TokenId> words = Tokens("once upon a time");
  options_.poll_timeout = 100ms;
  options_.silence_timeout = 400ms;
  FakeWorker& second = AddWorker();
  const auto play = [&](FakeWorker& on) {
    on.Play([words, &on](Stage& stage) {
      stage.Accept();
      for (size_t i = stage.request().resumed_tokens(); i < words.size(); ++i) {
        stage.Token(words[i]);
        // Its connection stays open, and nothing comes any more.
        if (i == 1 && on.silent) return stage.AwaitCancel(10000ms) ? grpc::Status::CANCELLED : grpc::Status::OK;
      }
      return stage.Finish(v1::Finished::STOP);
    });
  };
  play(worker());
  play(second);
  Start();
  second.silent = true;  // the first is the prefill worker too
  for (int i = 0; i < 2; ++i) {
    const Response response = Complete({{"prompt", "x"}, {"stream", true}, {"max_tokens", 10}});
    EXPECT_EQ(TextOf(response.body), " once upon a time");
    EXPECT_EQ(FinishReasonOf(response.body), "stop");
  }
  EXPECT_EQ(second.cancels, 1);
  EXPECT_EQ(Metric("resumed_total"), 1);
  EXPECT_EQ(Ask("GET /health HTTP/1.1\r\nHost: t\r\n\r\n").json()["decode_workers"], 1);
}

TEST_F(GatewayTest, LoadIsSpread) {
  AddWorker();
  Start();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Complete({{"prompt", "x"}}).status, 200);
  EXPECT_EQ(worker(0).calls, 5);
  EXPECT_EQ(worker(1).calls, 5);
}

}  // namespace
}  // namespace cofferdam::gateway
