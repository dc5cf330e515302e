// Requests for several answers to one prompt.
#include <algorithm>

#include "fixture.h"

namespace cofferdam::gateway {
namespace {

class ChoicesTest : public GatewayTest {
 protected:
  // What the worker was asked, by choice: others than the first may arrive in any order.
  std::vector<v1::GenerateRequest> Asked(size_t worker_index = 0) {
    std::vector<v1::GenerateRequest> requests = worker(worker_index).requests();
    std::ranges::sort(requests, {}, [](const v1::GenerateRequest& r) { return std::pair(r.request_id().size(), r.request_id()); });
    return requests;
  }
  // Says its seed, so that an answer shows which choice it is.
  Script SaysItsSeed() {
    return [this](Stage& stage) {
      stage.Accept();
      for (const TokenId token : Tokens("seed " + std::to_string(stage.request().sampling().seed()))) stage.Token(token);
      return stage.Finish(v1::Finished::STOP, {{"tags", 10}});
    };
  }
  static bool IsFirst(const Stage& stage) { return stage.request().sampling().seed() == 7; }

  Json body_{{"prompt", "Tell me"}, {"n", 3}, {"seed", 7}, {"max_tokens", 20}};
};

TEST_F(ChoicesTest, AWholeAnswerHasThemByIndex) {
  worker().Play(SaysItsSeed());
  Start();
  const Response response = Complete(body_);
  ASSERT_EQ(response.status, 200) << response.body;
  const Json json = response.json();
  ASSERT_EQ(json["choices"].size(), 3u);
  int tokens = 0;
  for (int i = 0; i < 3; ++i) {
    const std::string text = "seed " + std::to_string(7 + i);
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], " " + text);
    EXPECT_EQ(json["choices"][i]["finish_reason"], "stop");
    tokens += static_cast<int>(Tokens(text).size());
  }
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(json["usage"]["completion_tokens"], tokens);
  const std::vector<v1::GenerateRequest> asked = Asked();
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_EQ(asked[1].request_id(), asked[0].request_id() + "-1");
  for (const v1::GenerateRequest& request : asked) {
    EXPECT_EQ(request.domain(), asked[0].domain());
    EXPECT_EQ(request.tokens_size(), 3);
  }
  EXPECT_TRUE(Eventually([this] { return Metric("generation_tokens_total") > 0; }));
  EXPECT_EQ(Metric("generation_tokens_total"), tokens);
  EXPECT_EQ(Metric("prompt_tokens_total"), 3);
}

TEST_F(ChoicesTest, AStreamHasARoleTextAndEndOfEachAndOneUsage) {
  worker().Play(SaysItsSeed());
  Start();
  const Json message{{"role", "user"}, {"content", "Hi"}};
  const Response stream = Chat({{"messages", {message}},
                                {"n", 3},
                                {"seed", 7},
                                {"stream", true},
                                {"stream_options", {{"include_usage", true}}},
                                {"max_tokens", 20}});
  ASSERT_EQ(stream.status, 200) << stream.body;
  EXPECT_TRUE(stream.complete);
  EXPECT_EQ(http::TextsOf(stream.body), (std::vector<std::string>{" seed 7", " seed 8", " seed 9"}));
  const std::vector<std::string> events = EventsOf(stream.body);
  EXPECT_EQ(events.back(), "[DONE]");
  std::vector<int> roles(3), ends(3);
  int usages = 0;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json chunk = Json::parse(events[i]);
    if (chunk["usage"].is_object()) ++usages;
    if (chunk["choices"].empty()) continue;
    const Json& choice = chunk["choices"][0];
    if (choice["delta"].contains("role")) ++roles.at(choice["index"]);
    if (choice["finish_reason"].is_string()) ++ends.at(choice["index"]);
  }
  EXPECT_EQ(roles, (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(ends, (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(usages, 1);
  EXPECT_TRUE(Json::parse(events.at(events.size() - 2))["usage"].is_object());
}

TEST_F(ChoicesTest, TheOthersStartWithTheFirstToken) {
  std::atomic<bool> go{false};
  worker().Play([&](Stage& stage) {
    stage.Accept();
    while (IsFirst(stage) && !go && !stage.cancelled()) std::this_thread::sleep_for(2ms);
    stage.Token(Tokens("hello").front());
    return stage.Finish(v1::Finished::STOP);
  });
  Start();
  RawClient client(port());
  client.Send(Post("/v1/completions", body_.dump()));
  ASSERT_TRUE(Eventually([this] { return worker().calls == 1; }));
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(worker().calls, 1);
  go = true;
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(worker().calls, 3);
}

TEST_F(ChoicesTest, SeedsAreDrawnForEachWhenNoneIsGiven) {
  Start();
  body_.erase("seed");
  ASSERT_EQ(Complete(body_).status, 200);
  const std::vector<v1::GenerateRequest> asked = Asked();
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_NE(asked[0].sampling().seed(), asked[1].sampling().seed());
  EXPECT_NE(asked[0].sampling().seed() + 1, asked[1].sampling().seed());
  EXPECT_NE(asked[1].sampling().seed(), asked[2].sampling().seed());
}

TEST_F(ChoicesTest, AllGoToTheWorkerThatHasThePrompt) {
  AddWorker();
  Start();
  for (int i = 0; i < 4; ++i) ASSERT_EQ(Complete(body_).status, 200);
  EXPECT_EQ(worker(0).calls % 3, 0);
  EXPECT_EQ(worker(1).calls % 3, 0);
  EXPECT_EQ(worker(0).calls + worker(1).calls, 12);
}

TEST_F(ChoicesTest, EachStopsForItself) {
  worker().Play([this](Stage& stage) {
    stage.Accept();
    for (const TokenId token : Tokens(IsFirst(stage) ? "good END never" : "good day")) stage.Token(token);
    if (IsFirst(stage)) return stage.AwaitCancel(2000ms) ? grpc::Status::CANCELLED : stage.Finish(v1::Finished::STOP);
    return stage.Finish(v1::Finished::LENGTH);
  });
  Start();
  body_["n"] = 2;
  body_["best_of"] = 2;
  body_["stop"] = "END";
  body_["echo"] = true;
  const Json choices = Complete(body_).json()["choices"];
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0]["text"], "Tell me good ");
  EXPECT_EQ(choices[0]["finish_reason"], "stop");
  EXPECT_EQ(choices[1]["text"], "Tell me good day");
  EXPECT_EQ(choices[1]["finish_reason"], "length");
}

TEST_F(ChoicesTest, ChecksAddUp) {
  worker().Play(SaysItsSeed());
  Start();
  const Response whole = Ask(Post("/v1/completions", body_.dump(), "Cofferdam-Verify: 1\r\n"));
  ASSERT_EQ(whole.status, 200);
  EXPECT_EQ(whole.headers.at("cofferdam-verified"), "pages=3, tags=30, seal=0, payload=0, scrub=0, content=0, rows=0");
}

TEST_F(ChoicesTest, OnesFailureIsTheRequestsAndEndsTheOthers) {
  worker().Play([this](Stage& stage) {
    if (stage.request().sampling().seed() == 8) return grpc::Status(grpc::StatusCode::INTERNAL, "a bad page");
    stage.Accept();
    stage.Token(Tokens("hello").front());
    return stage.AwaitCancel(3000ms) ? grpc::Status::CANCELLED : stage.Finish(v1::Finished::STOP);
  });
  Start();
  const Response whole = Complete(body_);
  EXPECT_EQ(whole.status, 500) << whole.body;
  EXPECT_TRUE(Eventually([this] { return worker().cancels >= 1 && Metric("num_requests_running") == 0; }));
  body_["stream"] = true;
  const Response stream = Complete(body_);
  EXPECT_EQ(stream.status, 200);
  EXPECT_TRUE(Json::parse(EventsOf(stream.body).back()).contains("error")) << stream.body;
  EXPECT_TRUE(Eventually([this] { return Metric("num_requests_running") == 0; }));
}

TEST_F(ChoicesTest, AnotherNumberThanOneToSixteenIsRefused) {
  Start();
  for (const Json& n : {Json(0), Json(-1), Json(17), Json("2"), Json(1.5), Json(true)}) {
    body_["n"] = n;
    const Response response = Complete(body_);
    EXPECT_EQ(response.status, 400) << n;
    EXPECT_EQ(response.json()["error"]["param"], "n") << response.body;
  }
  body_["n"] = 3;
  body_["best_of"] = 4;
  EXPECT_EQ(Complete(body_).json()["error"]["param"], "best_of");
  EXPECT_EQ(worker().calls, 0);
  body_["best_of"] = 16;
  body_["n"] = 16;
  EXPECT_EQ(Complete(body_).json()["choices"].size(), 16u);
}

TEST_F(ChoicesTest, TakesAShareOfTheQuotaForEach) {
  options_.max_in_flight = 3;
  Start();
  EXPECT_EQ(Complete(body_).status, 200);
  body_["n"] = 4;
  const Response refused = Complete(body_);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.json()["error"]["code"], "queue_full");
  EXPECT_EQ(worker().calls, 3);
}

TEST_F(ChoicesTest, ADisconnectEndsAll) {
  worker().Play([this](Stage& stage) {
    stage.Accept();
    stage.Token(Tokens("hello").front());
    return stage.AwaitCancel(5000ms) ? grpc::Status::CANCELLED : stage.Finish(v1::Finished::STOP);
  });
  Start();
  RawClient client(port());
  body_["stream"] = true;
  client.Send(Post("/v1/completions", body_.dump()));
  ASSERT_TRUE(Eventually([this] { return worker().calls == 3; }));
  client.Reset();
  EXPECT_TRUE(Eventually([this] { return worker().cancels == 3; }));
  EXPECT_EQ(Metric("client_disconnects_total"), 1);
  EXPECT_EQ(Metric("num_requests_running"), 0);
}

TEST_F(ChoicesTest, ASlowClientHoldsEveryChoiceBack) {
  constexpr int kTokens = 200'000;
  worker().ChangeInfo([](v1::WorkerInfo& info) { info.set_context_tokens(1 << 20); });
  std::atomic<int> sent{0};
  worker().Play([&](Stage& stage) {
    stage.Accept();
    for (int i = 0; i < kTokens; ++i, ++sent) {
      if (!stage.Token(15043)) return grpc::Status::CANCELLED;
    }
    return stage.Finish(v1::Finished::LENGTH);
  });
  Start();
  RawClient slow(port(), 4096);
  body_["stream"] = true;
  body_["max_tokens"] = kTokens;
  slow.Send(Post("/v1/completions", body_.dump()));
  int before = -1;
  ASSERT_TRUE(Eventually(
      [&] {
        const int now = sent;
        const bool halted = now == before && now > 0;
        before = now;
        std::this_thread::sleep_for(300ms);
        return halted;
      },
      60000ms));
  EXPECT_LT(before, 3 * kTokens / 2);
  slow.Reset();
  EXPECT_TRUE(Eventually([this] { return Metric("num_requests_running") == 0; }));
}

}  // namespace
}  // namespace cofferdam::gateway
