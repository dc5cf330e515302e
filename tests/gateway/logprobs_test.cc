// Log probabilities and the shortest answer that a client may ask for.
#include <limits>

#include "fixture.h"

namespace cofferdam::gateway {
namespace {

const Json kMessages = Json::array({{{"role", "user"}, {"content", "x"}}});

class LogprobsTest : public GatewayTest {
 protected:
  // A token for each character of `text`.
  std::vector<TokenId> Letters(const std::string& text) {
    std::vector<TokenId> tokens;
    for (const char c : text) tokens.push_back(Tokens(std::string("x") + c).back());
    return tokens;
  }
  // Sends the tokens and waits for the gateway to end the call; finishes if it does not.
  Script Goes(std::vector<TokenId> tokens) {
    return [tokens = std::move(tokens)](Stage& stage) {
      stage.Accept();
      for (const TokenId token : tokens) stage.Token(token);
      return stage.AwaitCancel(2000ms) ? grpc::Status::CANCELLED : stage.Finish(v1::Finished::STOP);
    };
  }
  static std::string BytesOf(const Json& content) {
    std::string bytes;
    for (const Json& entry : content) {
      for (const Json& byte : entry["bytes"]) bytes += static_cast<char>(byte.get<int>());
    }
    return bytes;
  }
  // The contents of all chunks of a chat, in one array.
  static Json StreamedContent(const std::string& body) {
    Json content = Json::array();
    for (const std::string& event : EventsOf(body)) {
      if (event == "[DONE]") continue;
      const Json parsed = Json::parse(event);
      for (const Json& choice : parsed["choices"]) {
        if (choice["logprobs"].is_null()) continue;
        for (const Json& entry : choice["logprobs"]["content"]) content.push_back(entry);
      }
    }
    return content;
  }
};

TEST_F(LogprobsTest, AChatTellsThemOfEveryToken) {
  worker().Play(Says(Tokens("once upon a time")));
  Start();
  const Response response = Chat({{"messages", kMessages}, {"logprobs", true}, {"top_logprobs", 3}});
  ASSERT_EQ(response.status, 200) << response.body;
  const Json choice = response.json()["choices"][0];
  const Json content = choice["logprobs"]["content"];
  ASSERT_EQ(content.size(), 4u) << choice;
  EXPECT_TRUE(choice["logprobs"]["refusal"].is_null());
  EXPECT_EQ(BytesOf(content), choice["message"]["content"]);
  EXPECT_EQ(content[0]["token"], " once");
  EXPECT_EQ(content[0]["logprob"], -0.5);
  ASSERT_EQ(content[0]["top_logprobs"].size(), 3u);
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], " once");
  EXPECT_EQ(content[0]["top_logprobs"][1]["logprob"], -1.0);
  EXPECT_TRUE(content[0]["top_logprobs"][2]["bytes"].is_array());
  EXPECT_EQ(worker().requests().at(0).top_logprobs(), 3u);

  const Response stream = Chat({{"messages", kMessages}, {"logprobs", true}, {"top_logprobs", 3}, {"stream", true}});
  EXPECT_EQ(StreamedContent(stream.body), content);
}

TEST_F(LogprobsTest, WithoutTheMostLikelyOnlyThoseOfTheAnswer) {
  Start();
  const Json content = Chat({{"messages", kMessages}, {"logprobs", true}}).json()["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 1u);
  EXPECT_EQ(content[0]["top_logprobs"], Json::array());
  const Json silent = Chat({{"messages", kMessages}, {"logprobs", false}, {"top_logprobs", nullptr}}).json();
  EXPECT_TRUE(silent["choices"][0]["logprobs"].is_null());
}

TEST_F(LogprobsTest, ACompletionTellsThemInFourArrays) {
  worker().Play(Says(Tokens("once upon a time")));
  Start();
  const Json choice = Complete({{"prompt", "x"}, {"logprobs", 2}}).json()["choices"][0];
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({" once", " upon", " a", " time"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 5, 10, 12}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json({-0.5, -0.5, -0.5, -0.5}));
  ASSERT_EQ(choice["logprobs"]["top_logprobs"].size(), 4u);
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][1].size(), 2u);
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][1][" upon"], -0.5);
  const Json bare = Complete({{"prompt", "x"}, {"logprobs", 0}}).json()["choices"][0];
  EXPECT_EQ(bare["logprobs"]["top_logprobs"], Json({nullptr, nullptr, nullptr, nullptr}));
}

TEST_F(LogprobsTest, TheChosenTokenIsAmongTheMostLikelyOfACompletion) {
  worker().Play([this](Stage& stage) {
    stage.Accept();
    v1::GenerateEvent event = stage.TokenEvent(0, Tokens("time").at(0));
    event.mutable_token()->set_logprob(-7);
    event.mutable_token()->set_top_tokens(0, Tokens("once").at(0));
    stage.Send(event);
    event.mutable_token()->set_index(1);
    stage.Send(event);
    event.clear_token();
    event.mutable_finished()->set_reason(v1::Finished::STOP);
    event.mutable_finished()->set_generated_tokens(2);
    stage.Send(event);
    return grpc::Status::OK;
  });
  Start();
  const Json top = Complete({{"prompt", "x"}, {"logprobs", 1}}).json()["choices"][0]["logprobs"]["top_logprobs"];
  EXPECT_EQ(top, Json({{{" once", -0.5}, {" time", -7.0}}, {{" once", -0.5}, {" time", -7.0}}}));
}

TEST_F(LogprobsTest, PartsOfACharacterComeWithIt) {
  std::vector<TokenId> tokens;
  for (const unsigned byte : {0xF0u, 0x9Fu, 0x98u, 0x80u}) tokens.push_back(static_cast<TokenId>(byte + 3));
  worker().Play(Says(tokens));
  Start();
  const Response stream = Chat({{"messages", kMessages}, {"logprobs", true}, {"stream", true}});
  EXPECT_EQ(BytesOf(StreamedContent(stream.body)), "\xF0\x9F\x98\x80");
  int chunks = 0;
  for (const std::string& event : EventsOf(stream.body)) chunks += event.find("\"logprobs\":{") != std::string::npos ? 1 : 0;
  EXPECT_EQ(chunks, 1);
  const Json named = Complete({{"prompt", "x"}, {"logprobs", 0}}).json()["choices"][0]["logprobs"];
  EXPECT_EQ(named["tokens"], Json({"bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80"}));
  EXPECT_EQ(named["text_offset"], Json({0, 0, 0, 0}));
}

TEST_F(LogprobsTest, NoneIsToldOfWhatAStopStringCutOff) {
  worker().Play(Goes(Letters("abcENDdef")));
  Start();
  const Json choice = Chat({{"messages", kMessages}, {"logprobs", true}, {"stop", "END"}, {"max_tokens", 50}}).json()["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "abc");
  EXPECT_EQ(BytesOf(choice["logprobs"]["content"]), "abc");
}

TEST_F(LogprobsTest, AProbabilityOfZeroIsANumber) {
  worker().Play([this](Stage& stage) {
    stage.Accept();
    v1::GenerateEvent event = stage.TokenEvent(0, Tokens("time").at(0));
    event.mutable_token()->set_logprob(-std::numeric_limits<float>::infinity());
    event.mutable_token()->set_top_logprobs(0, std::numeric_limits<float>::quiet_NaN());
    stage.Send(event);
    event.clear_token();
    event.mutable_finished()->set_reason(v1::Finished::STOP);
    event.mutable_finished()->set_generated_tokens(1);
    stage.Send(event);
    return grpc::Status::OK;
  });
  Start();
  const Response response = Chat({{"messages", kMessages}, {"logprobs", true}, {"top_logprobs", 1}});
  const Json entry = response.json()["choices"][0]["logprobs"]["content"].at(0);
  EXPECT_EQ(entry["logprob"], -9999.0);
  EXPECT_EQ(entry["top_logprobs"][0]["logprob"], -9999.0);
}

TEST_F(LogprobsTest, AWorkerThatLeavesThemOutIsNotListenedTo) {
  worker().Play([this](Stage& stage) {
    stage.Accept();
    v1::GenerateEvent event = stage.TokenEvent(0, Tokens("time").at(0));
    event.mutable_token()->clear_top_logprobs();
    stage.Send(event);
    return stage.AwaitCancel(2000ms) ? grpc::Status::CANCELLED : stage.Finish(v1::Finished::STOP);
  });
  Start();
  const Response response = Chat({{"messages", kMessages}, {"logprobs", true}, {"top_logprobs", 1}});
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(response.json()["error"]["code"], "incomplete_answer");
  EXPECT_TRUE(Eventually([this] { return worker().cancels == 1; }));
}

TEST_F(LogprobsTest, AreBoundedWhereTheAnswerIsHeld) {
  worker().ChangeInfo([](v1::WorkerInfo& info) {
    info.set_context_tokens(100'000);
    info.set_kv_tokens(100'000);
  });
  worker().Play(Says(std::vector<TokenId>(30'000, Tokens("time").at(0))));
  Start();
  Json body = {{"messages", kMessages}, {"logprobs", true}, {"top_logprobs", 20}, {"max_tokens", 30'000}};
  const Response response = Chat(body);
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.json()["error"]["param"], "logprobs");
  body["stream"] = true;
  EXPECT_EQ(StreamedContent(Chat(body).body).size(), 30'000u);
}

TEST_F(LogprobsTest, ARequestForAtLeastSoManyTokensGoesToTheWorker) {
  Start();
  EXPECT_EQ(Complete({{"prompt", "x"}, {"min_tokens", 3}, {"max_tokens", 3}}).status, 200);
  EXPECT_EQ(worker().requests().at(0).min_tokens(), 3u);
  // Without max_tokens it is the context that bounds.
  const Response response = Chat({{"messages", kMessages}, {"min_tokens", 512}});
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.json()["error"]["param"], "min_tokens");
}

TEST_F(LogprobsTest, NoStopStringEndsAnAnswerThatIsTooShort) {
  worker().Play(Goes(Letters("abENDcdENDef")));
  Start();
  const auto text = [&](int min_tokens) {
    return Complete({{"prompt", "x"}, {"stop", "END"}, {"max_tokens", 50}, {"min_tokens", min_tokens}})
        .json()["choices"][0]["text"];
  };
  EXPECT_EQ(text(0), "ab");
  EXPECT_EQ(text(2), "ab");
  EXPECT_EQ(text(6), "abENDcd");
}

TEST_F(LogprobsTest, AWorkerThatDiesAfterAnEarlyStopTokenHasNotFinished) {
  FakeWorker& other = AddWorker();
  const TokenId stop = Tokens("time").at(0), word = Tokens("once").at(0);
  // The first ends with the stop token before its time; the other goes on from there.
  for (FakeWorker* each : {&worker(), &other}) {
    each->Play([stop, word](Stage& stage) {
      stage.Accept();
      if (stage.request().resumed_tokens() == 0) {
        stage.Token(stop);
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
      }
      stage.Token(word);
      stage.Token(stop);
      return stage.Finish(v1::Finished::STOP);
    });
  }
  Start();
  const Response response = Complete({{"prompt", "x"}, {"stop_token_ids", {stop}}, {"min_tokens", 2}, {"max_tokens", 9}});
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.json()["usage"]["completion_tokens"], 3);
}

}  // namespace
}  // namespace cofferdam::gateway
