// A client that sends Cofferdam-Verify is told of the checks that were made for its request; nobody else sees a change.
#include <limits>
#include <regex>

#include "fixture.h"
#include "gateway/verified_pages.h"
#include "kv/checks.h"

namespace cofferdam::gateway {
namespace {

const std::string kAsk = "Cofferdam-Verify: 1\r\n";
const std::string kName = "cofferdam-verified";
const std::string kNoneKnown = "pages=1";
const Checks kTypical = {{"tags", 640}, {"seal", 16}};
const std::string kTypicalText = "pages=16, tags=640, seal=16, payload=0, scrub=0, content=0, rows=0";

// What differs between two answers to one request is masked: the id and the time.
std::string Masked(const std::string& bytes) {
  const std::string without_id = std::regex_replace(bytes, std::regex(R"("id":"[a-z]+-[0-9a-f]{32}")"), R"("id":"ID")");
  return std::regex_replace(without_id, std::regex(R"("created":[0-9]{10})"), R"("created":TIME)");
}

// `text` without `part`, which must be in it once.
std::string Without(std::string text, const std::string& part) {
  const size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << "no '" << part << "' in: " << text;
  if (at == std::string::npos) return text;
  text.erase(at, part.size());
  EXPECT_EQ(text.find(part), std::string::npos) << "twice: " << part;
  return text;
}

std::string CommentOf(const std::string& body) {
  const std::string start = ": cofferdam-verified ";
  const size_t at = body.find(start);
  if (at == std::string::npos) return "(none)";
  return body.substr(at + start.size(), body.find('\n', at) - at - start.size());
}

class VerifiedTest : public GatewayTest {
 protected:
  // Accepts with `pages`, says some words, and finishes with `checks`.
  Script Reports(uint32_t pages, Checks checks) {
    return [words = Tokens("once upon a time"), pages, checks = std::move(checks)](Stage& stage) {
      stage.Accept(pages);
      for (const TokenId word : words) stage.Token(word);
      return stage.Finish(v1::Finished::STOP, checks);
    };
  }
  // Accepts with `pages`, sends `tokens` tokens, and dies; resumed it finishes with `checks`.
  Script DiesOnce(uint32_t pages, size_t tokens, Checks checks) {
    return [this, words = Tokens("once upon a time"), pages, tokens, checks = std::move(checks)](Stage& stage) {
      if (deaths_++ == 0) {
        stage.Accept(pages);
        for (size_t i = 0; i < tokens; ++i) stage.Token(words[i]);
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "died");
      }
      stage.Accept(pages + 1);
      for (size_t i = stage.request().resumed_tokens(); i < words.size(); ++i) stage.Token(words[i]);
      return stage.Finish(v1::Finished::STOP, checks);
    };
  }
  Response AskVerified(const Json& body) { return Ask(Post("/v1/completions", body.dump(), kAsk)); }
  // The value of the header of a whole answer; "(none)" without one.
  static std::string HeaderOf(const Response& response) {
    const auto found = response.headers.find(kName);
    return found == response.headers.end() ? "(none)" : found->second;
  }
  // All bytes of the answer to `request`, up to `end`.
  std::string Bytes(const std::string& request, const std::string& end) {
    RawClient client(port());
    client.Send(request);
    return client.ReadUntil(end);
  }

  const Json whole_ = {{"prompt", "x"}, {"max_tokens", 10}};
  const Json stream_ = {{"prompt", "x"}, {"max_tokens", 10}, {"stream", true}};
  std::atomic<int> deaths_{0};
};

TEST_F(VerifiedTest, ReportsTheKindsOfChecksInTheirOrder) {
  ASSERT_EQ(kCheckNames.size(), kv::kAllCheckKinds.size());
  for (size_t i = 0; i < kCheckNames.size(); ++i) EXPECT_EQ(kCheckNames[i], kv::ToString(kv::kAllCheckKinds[i]));
}

TEST_F(VerifiedTest, AWholeAnswerCarriesOneHeaderMoreAndNoOtherByte) {
  worker().Play(Reports(16, kTypical));
  Start();
  const std::string messages = R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":10})";
  for (const auto& [path, body] : {std::pair<std::string, std::string>{"/v1/completions", whole_.dump()},
                                   std::pair<std::string, std::string>{"/v1/chat/completions", messages}}) {
    const std::string id = "X-Request-Id: one\r\n";  // else each answer has another
    const std::string plain = Bytes(Post(path, body, id), "}}");
    const std::string asked = Bytes(Post(path, body, id + kAsk), "}}");
    EXPECT_EQ(Masked(Without(asked, "Cofferdam-Verified: " + kTypicalText + "\r\n")), Masked(plain));
    EXPECT_TRUE(
        plain.starts_with("HTTP/1.1 200 OK\r\nServer: cofferdam\r\nConnection: keep-alive\r\nX-Request-Id: one\r\n"
                          "Content-Type: application/json\r\nContent-Length: "))
        << plain;
  }
}

TEST_F(VerifiedTest, AStreamEndsWithACommentBeforeDoneAndItsEventsAreTheSame) {
  worker().Play(Reports(16, kTypical));
  Start();
  for (const bool usage : {false, true}) {
    Json body = stream_;
    if (usage) body["stream_options"] = {{"include_usage", true}};
    const Response plain = Complete(body);
    const Response asked = AskVerified(body);
    ASSERT_TRUE(asked.complete);
    EXPECT_EQ(HeaderOf(asked), "pages=16");  // the checks are yet to be made
    const std::string comment = ": cofferdam-verified " + kTypicalText + "\n\n";
    EXPECT_TRUE(asked.body.ends_with("\n\n" + comment + "data: [DONE]\n\n")) << asked.body;
    EXPECT_EQ(Masked(Without(asked.body, comment)), Masked(plain.body));
    EXPECT_TRUE(Masked(plain.body).starts_with(R"(data: {"id":"ID","object":"text_completion","created":TIME,)"));
    EXPECT_EQ(TextOf(Without(asked.body, comment)), " once upon a time");
  }
}

TEST_F(VerifiedTest, TheHeadOfAStreamCarriesOneHeaderMoreAndNoOtherByte) {
  worker().Play(Reports(16, kTypical));
  Start();
  for (const std::string& version : {std::string("HTTP/1.1"), std::string("HTTP/1.0")}) {
    const auto head = [&](const std::string& headers) {
      std::string request = Post("/v1/completions", stream_.dump(), "X-Request-Id: one\r\n" + headers);
      request.replace(request.find("HTTP/1.1"), 8, version);
      const std::string bytes = Bytes(request, "[DONE]\n\n");
      return bytes.substr(0, bytes.find("\r\n\r\n") + 4);
    };
    const std::string plain = head("");
    EXPECT_EQ(Without(head(kAsk), "Cofferdam-Verified: pages=16\r\n"), plain);
    EXPECT_NE(plain.find("X-Accel-Buffering: no\r\n"), std::string::npos);
    EXPECT_EQ(plain.find("Cofferdam-"), std::string::npos);
  }
}

TEST_F(VerifiedTest, NothingIsSaidWithoutTheHeader) {
  worker().Play(Reports(16, kTypical));
  Start();
  EXPECT_EQ(HeaderOf(Complete(whole_)), "(none)");
  const Response stream = Complete(stream_);
  EXPECT_EQ(HeaderOf(stream), "(none)");
  EXPECT_EQ(stream.body.find("cofferdam"), std::string::npos);
  EXPECT_EQ(HeaderOf(AskVerified(whole_)), kTypicalText);  // and with it there is something to say
}

TEST_F(VerifiedTest, CountsAreReportedInOneOrderWhateverTheWorkers) {
  worker().Play(Reports(3, {{"rows", 6}, {"content", 5}, {"scrub", 4}, {"payload", 3}, {"seal", 2}, {"tags", 1}}));
  Start();
  EXPECT_EQ(HeaderOf(AskVerified(whole_)), "pages=3, tags=1, seal=2, payload=3, scrub=4, content=5, rows=6");
}

TEST_F(VerifiedTest, KindsThatAreNotKnownAreIgnored) {
  const std::string hostile = "x\r\nSet-Cookie: a=b";
  worker().Play(Reports(16, {{"", 1}, {"Tags", 2}, {"tags ", 3}, {hostile, 4}, {"tags", 640}, {"pages", 9}, {"seal", 16}}));
  Start();
  const Response response = AskVerified(whole_);
  EXPECT_EQ(HeaderOf(response), kTypicalText);
  EXPECT_FALSE(response.headers.contains("set-cookie"));
}

TEST_F(VerifiedTest, EntriesBeyondTheLimitAreNotRead) {
  Checks checks(16, {"unknown", 1});
  checks[15] = {"tags", 640};
  for (int i = 0; i < 100000; ++i) checks.emplace_back("seal", 1);
  worker().Play(Reports(16, checks));
  Start();
  EXPECT_EQ(HeaderOf(AskVerified(whole_)), "pages=16, tags=640, seal=0, payload=0, scrub=0, content=0, rows=0");
  EXPECT_EQ(Complete(whole_).status, 200);
}

TEST_F(VerifiedTest, SumsStopAtTheLargestNumber) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  worker().Play(Reports(1, {{"tags", kMost - 1}, {"tags", 2}, {"tags", 7}, {"seal", 2}, {"seal", 3}, {"payload", kMost}}));
  Start();
  const std::string most = std::to_string(kMost);
  EXPECT_EQ(HeaderOf(AskVerified(whole_)), "pages=1, tags=" + most + ", seal=5, payload=" + most + ", scrub=0, content=0, rows=0");
}

TEST_F(VerifiedTest, AResumedRequestAddsUp) {
  const Script script = DiesOnce(3, 2, {{"tags", 20}, {"seal", 4}});
  worker().Play(script);
  AddWorker().Play(script);
  Start();
  const Response whole = AskVerified(whole_);
  EXPECT_EQ(whole.json()["choices"][0]["text"], " once upon a time");
  EXPECT_EQ(worker(0).calls, 1);
  EXPECT_EQ(worker(1).calls, 1);
  EXPECT_EQ(HeaderOf(whole), "pages=7, tags=20, seal=4, payload=0, scrub=0, content=0, rows=0");
}

TEST_F(VerifiedTest, AResumedStreamAddsUpInItsComment) {
  const Script script = DiesOnce(3, 2, {{"tags", 20}, {"seal", 4}});
  worker().Play(script);
  AddWorker().Play(script);
  Start();
  const Response stream = AskVerified(stream_);
  EXPECT_EQ(HeaderOf(stream), "pages=3");  // what had come when the head was sent
  EXPECT_EQ(CommentOf(stream.body), "pages=7, tags=20, seal=4, payload=0, scrub=0, content=0, rows=0");
}

TEST_F(VerifiedTest, AnAttemptThatDiedBeforeItsFirstTokenCountsToo) {
  worker().Play(DiesOnce(3, 0, {{"tags", 20}}));
  Start();
  EXPECT_EQ(HeaderOf(AskVerified(whole_)), "pages=7, tags=20, seal=0, payload=0, scrub=0, content=0, rows=0");
}

TEST_F(VerifiedTest, AStaleReportIsNotCounted) {
  worker().Play([](Stage& stage) {
    stage.Accept(2);
    v1::GenerateEvent again = stage.TokenEvent(0, 5);
    again.mutable_accepted()->set_prompt_tokens(static_cast<uint32_t>(stage.request().tokens_size()));
    again.mutable_accepted()->set_pages_verified(100);
    stage.Send(again);  // an attempt accepts once
    v1::GenerateEvent other = stage.TokenEvent(0, 5);
    other.mutable_attempt()->set_counter(stage.request().attempt().counter() + 1);
    other.mutable_finished()->set_reason(v1::Finished::STOP);
    other.mutable_finished()->add_checks()->set_kind("tags");
    other.mutable_finished()->mutable_checks(0)->set_pages(100);
    stage.Send(other);
    stage.Token(5);
    return stage.Finish(v1::Finished::STOP, {{"tags", 3}});
  });
  Start();
  EXPECT_EQ(HeaderOf(AskVerified(whole_)), "pages=2, tags=3, seal=0, payload=0, scrub=0, content=0, rows=0");
}

// The worker's own count is then never heard, and what is not known is not said to be zero.
TEST_F(VerifiedTest, AnAnswerWithoutTheWorkersReportSaysOnlyItsPages) {
  worker().Play([words = Tokens("once upon")](Stage& stage) {
    stage.Accept();
    for (const TokenId word : words) stage.Token(word);
    if (stage.request().max_tokens() == words.size()) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "died at the end");
    return stage.AwaitCancel(2000ms) ? grpc::Status::CANCELLED : stage.Finish(v1::Finished::STOP, kTypical);
  });
  Start();
  for (const Json& why : {Json{{"stop", "upon"}, {"max_tokens", 10}}, Json{{"max_tokens", 2}}}) {
    Json body = why;
    body["prompt"] = "x";
    const Response whole = AskVerified(body);
    EXPECT_EQ(whole.status, 200) << whole.body;
    EXPECT_EQ(HeaderOf(whole), kNoneKnown);
    body["stream"] = true;
    EXPECT_EQ(CommentOf(AskVerified(body).body), kNoneKnown);
  }
}

TEST_F(VerifiedTest, AnErrorReportsNothing) {
  const auto fails = [](v1::Finished::Reason reason, uint32_t said) {
    return [reason, said](Stage& stage) {
      stage.Accept();
      stage.Token(5);
      v1::GenerateEvent end = stage.TokenEvent(0, 0);
      end.mutable_finished()->set_reason(reason);
      end.mutable_finished()->set_generated_tokens(said);
      end.mutable_finished()->add_checks()->set_kind("tags");
      stage.Send(end);
      return grpc::Status::OK;
    };
  };
  Start();
  for (const Script& script :
       {Script(fails(v1::Finished::STOP, 3)), Script(fails(v1::Finished::UNKNOWN, 1)), Script([](Stage& stage) {
          stage.Accept();
          stage.Token(5);
          return grpc::Status(grpc::StatusCode::DATA_LOSS, "a tag was wrong");
        })}) {
    worker().Play(script);
    const Response whole = AskVerified(whole_);
    EXPECT_EQ(whole.status, 500);
    EXPECT_EQ(HeaderOf(whole), "(none)");
    const Response stream = AskVerified(stream_);
    EXPECT_EQ(stream.body.find("cofferdam-verified"), std::string::npos) << stream.body;
    EXPECT_TRUE(Json::parse(EventsOf(stream.body).back()).contains("error"));
  }
}

TEST_F(VerifiedTest, AnyOtherValueIsRefusedBeforeAWorkerIsAsked) {
  Start();
  const std::string ask = "Cofferdam-Verify:";
  for (const std::string& headers :
       {ask + "\r\n", ask + " 0\r\n", ask + " 2\r\n", ask + " 01\r\n", ask + " true\r\n", ask + " 1, 1\r\n", ask + " 1;q=1\r\n",
        ask + " \"1\"\r\n", kAsk + kAsk, kAsk + "cofferdam-verify: 0\r\n", kAsk + ask + "\r\n", ask + "\r\n" + kAsk}) {
    for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
      RawClient client(port());
      client.Send(Post(path, whole_.dump(), headers));
      const Response response = client.Read();
      ASSERT_EQ(response.status, 400) << headers;
      const Json error = response.json()["error"];
      EXPECT_EQ(error["type"], "invalid_request_error");
      EXPECT_EQ(error["param"], "Cofferdam-Verify");
      EXPECT_EQ(error["message"], "The header Cofferdam-Verify must be sent once, as 'Cofferdam-Verify: 1', or not at all.");
      EXPECT_EQ(HeaderOf(response), "(none)");
      client.Send(Post("/v1/completions", whole_.dump()));  // the connection goes on
      EXPECT_EQ(client.Read().status, 200);
    }
  }
  EXPECT_EQ(worker().calls, 24);  // those without the header
}

TEST_F(VerifiedTest, SpacesAroundTheValueAndTheCaseOfTheNameDoNotCount) {
  worker().Play(Reports(16, kTypical));
  Start();
  for (const char* header : {"COFFERDAM-verify:1\r\n", "cofferdam-verify: \t 1 \t \r\n"}) {
    EXPECT_EQ(HeaderOf(Ask(Post("/v1/completions", whole_.dump(), header))), kTypicalText) << header;
  }
}

TEST_F(VerifiedTest, OtherPathsDoNotReadTheHeader) {
  Start();
  const Response response = Ask("GET /version HTTP/1.1\r\nHost: test\r\nCofferdam-Verify: 7\r\n\r\n");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(HeaderOf(response), "(none)");
  EXPECT_EQ(Ask(Post("/tokenize", R"({"prompt":"Hello"})", kAsk)).status, 200);
}

}  // namespace
}  // namespace cofferdam::gateway
