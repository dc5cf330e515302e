// HTTP as it comes: cut, flooded, pipelined, slow.
#include "fixture.h"

namespace cofferdam::gateway {
namespace {

const std::string kBody = R"({"prompt":"x"})";

TEST_F(GatewayTest, KeepsTheConnection) {
  Start();
  RawClient client(port());
  for (int i = 0; i < 3; ++i) {
    client.Send(Post("/v1/completions", kBody));
    EXPECT_EQ(client.Read().status, 200);
    client.Send(Post("/v1/completions", R"({"prompt":"x","stream":true})"));
    EXPECT_TRUE(client.Read().complete);
  }
  client.Send("GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  const Response last = client.Read();
  EXPECT_EQ(last.headers.at("connection"), "close");
  EXPECT_TRUE(client.AwaitEnd());
}

TEST_F(GatewayTest, AnswersPipelinedRequestsInOrder) {
  Start();
  RawClient client(port());
  client.Send(Post("/v1/completions", kBody, "X-Request-Id: one\r\n") +
              Post("/v1/completions", R"({"prompt":"x","stream":true})", "X-Request-Id: two\r\n") +
              "GET /version HTTP/1.1\r\nHost: t\r\nX-Request-Id: three\r\n\r\n");
  EXPECT_EQ(client.Read().headers["x-request-id"], "one");
  const Response second = client.Read();
  EXPECT_EQ(second.headers.at("x-request-id"), "two");
  EXPECT_TRUE(second.complete);
  EXPECT_EQ(client.Read().headers["x-request-id"], "three");
}

TEST_F(GatewayTest, KeepsWhatIsSentAheadWhileStreaming) {
  std::atomic<bool> go{false};
  worker().Play([&](Stage& stage) {
    stage.Accept();
    while (!go && !stage.cancelled()) std::this_thread::sleep_for(2ms);
    return stage.Finish(v1::Finished::LENGTH);
  });
  Start();
  RawClient client(port());
  client.Send(Post("/v1/completions", R"({"prompt":"x","stream":true})"));
  client.ReadUntil("\r\n\r\n");
  client.Send("GET /version HTTP/1.1\r\nHost: t\r\n\r\n");
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(worker().cancels, 0);
  go = true;
  EXPECT_TRUE(client.Read().complete);
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(GatewayTest, ReadsChunkedBodies) {
  Start();
  RawClient client(port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"pro\r\n");
  client.Send("9\r\nmpt\":\"x\"}\r\n0\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(GatewayTest, Says100Continue) {
  Start();
  RawClient client(port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n");
  EXPECT_EQ(client.Read().status, 100);
  client.Send(kBody);
  EXPECT_EQ(client.Read().status, 200);
  // Refused by its head: no 100 first.
  RawClient refused(port());
  refused.Send("POST /v1/nothing HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n");
  EXPECT_EQ(refused.Read().status, 404);
}

TEST_F(GatewayTest, RefusesHugeBodies) {
  options_.max_body_bytes = 10000;
  Start();
  const std::string big(1 << 20, ' ');
  EXPECT_EQ(Ask(Post("/v1/completions", big)).status, 413);
  RawClient chunked(port());
  chunked.Send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) chunked.Send("400\r\n" + std::string(1024, ' ') + "\r\n");
  EXPECT_EQ(chunked.Read().status, 413);
  RawClient absurd(port());
  absurd.Send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999999999999999\r\n\r\n");
  EXPECT_EQ(absurd.Read().status / 100, 4);
}

TEST_F(GatewayTest, LimitsTheBodiesOfAll) {
  options_.max_total_body_bytes = 1000;
  Start();
  EXPECT_EQ(Ask(Post("/v1/completions", kBody + std::string(2000, ' '))).status, 503);
  EXPECT_EQ(Ask(Post("/v1/completions", kBody)).status, 200);
  EXPECT_EQ(Ask(Post("/v1/completions", kBody + std::string(900, ' '))).status, 200);
}

TEST_F(GatewayTest, RefusesHeaderFloods) {
  Start();
  RawClient client(port());
  std::string flood = "GET /health HTTP/1.1\r\nHost: t\r\n";
  for (int i = 0; i < 3000; ++i) flood += "X-" + std::to_string(i) + ": y\r\n";
  client.Send(flood);
  EXPECT_EQ(client.Read().status, 431);
  RawClient line(port());
  line.Send("GET /" + std::string(100000, 'a'));
  EXPECT_EQ(line.Read().status, 431);
}

TEST_F(GatewayTest, RefusesWhatIsNotHttp) {
  Start();
  for (const char* bytes :
       {"hello\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /health HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "GET /health HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "GET health HTTP/1.1\r\n\r\n",
        "GET /%zz HTTP/1.1\r\n\r\n", "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    EXPECT_EQ(Ask(bytes).status, 400) << bytes;
  }
  EXPECT_EQ(Ask("GET /health HTTP/1.1\r\nHost: t\r\n\r\n").status, 200);
}

TEST_F(GatewayTest, SlowHeadersAndBodiesTimeOut) {
  options_.header_timeout = 100ms;
  options_.body_timeout = 100ms;
  options_.idle_timeout = 300ms;
  Start();
  RawClient head(port());
  head.Send("GET /health HTTP/1.1\r\n");
  EXPECT_EQ(head.Read().status, 408);
  RawClient body(port());
  body.Send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 14\r\n\r\n{");
  EXPECT_EQ(body.Read().status, 408);
  RawClient silent(port());
  EXPECT_TRUE(silent.AwaitEnd());
  RawClient idle(port());
  idle.Send("GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(idle.Read().status, 200);
  EXPECT_TRUE(idle.AwaitEnd());
}

TEST_F(GatewayTest, LimitsConnections) {
  options_.max_connections = 3;
  Start();
  ASSERT_TRUE(Eventually([this] { return Metric("connections") == 1; }));
  std::this_thread::sleep_for(200ms);  // the connection that asked is counted until it has been closed on both sides
  RawClient one(port()), two(port()), three(port());
  for (RawClient* client : {&one, &two, &three}) {
    client->Send("GET /version HTTP/1.1\r\nHost: t\r\n\r\n");
    ASSERT_EQ(client->Read().status, 200);
  }
  RawClient four(port());
  EXPECT_EQ(four.Read().status, 503);
}

TEST_F(GatewayTest, AnswersHeadAndOldHttp) {
  Start();
  RawClient client(port());
  client.Send("HEAD /health HTTP/1.1\r\nHost: t\r\n\r\nGET /version HTTP/1.1\r\nHost: t\r\n\r\n");
  const Response head = client.Read(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_NE(head.headers.at("content-length"), "0");
  EXPECT_EQ(client.Read().status, 200);
  const std::string body = R"({"prompt":"x","stream":true})";
  const Response old = Ask("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_EQ(old.status, 200);
  EXPECT_FALSE(old.headers.contains("transfer-encoding"));
  EXPECT_EQ(TextOf(old.body), " hello");
}

TEST_F(GatewayTest, EchoesOnlyWellFormedRequestIds) {
  Start();
  const auto id_for = [this](const std::string& given) {
    return Ask("GET /version HTTP/1.1\r\nHost: t\r\nX-Request-Id: " + given + "\r\n\r\n").headers["x-request-id"];
  };
  EXPECT_EQ(id_for("a-1_b.c:d"), "a-1_b.c:d");
  EXPECT_EQ(id_for("a b").substr(0, 4), "req-");
  EXPECT_EQ(id_for(std::string(129, 'a')).size(), 20u);
}

TEST_F(GatewayTest, EveryAnswerHasARequestId) {
  Start();
  const Response whole = Ask(Post("/v1/completions", kBody));
  EXPECT_EQ(whole.headers.at("x-request-id"), whole.json()["id"]) << "the name in the logs";
  const Response stream = Ask(Post("/v1/completions", R"({"prompt":"x","stream":true})"));
  EXPECT_EQ(stream.headers.at("x-request-id"), Json::parse(EventsOf(stream.body).front())["id"]);
  for (const std::string& wrong :
       {std::string("GET /nothing HTTP/1.1\r\nHost: t\r\n\r\n"), Post("/v1/completions", "{"), Post("/v1/nothing", "{}"),
        std::string("GARBAGE\r\n\r\n"), std::string("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")}) {
    Response response = Ask(wrong);
    EXPECT_GE(response.status, 400);
    EXPECT_FALSE(response.headers["x-request-id"].empty()) << response.status;
  }
  const Response refused = Ask(Post("/v1/nothing", "{}", "X-Request-Id: mine\r\n"));
  EXPECT_EQ(refused.headers.at("x-request-id"), "mine") << "also where the body was not read";
}

TEST_F(GatewayTest, StopEndsIdleAndRunningConnections) {
  worker().Play([](Stage& stage) {
    stage.Accept();
    stage.AwaitCancel(5000ms);
    return grpc::Status::CANCELLED;
  });
  Start();
  RawClient idle(port());
  RawClient running(port());
  idle.Send("GET /version HTTP/1.1\r\nHost: t\r\n\r\n");
  idle.Read();
  running.Send(Post("/v1/completions", R"({"prompt":"x","stream":true})"));
  running.ReadUntil("\r\n\r\n");
  const auto start = std::chrono::steady_clock::now();
  gateway().Stop();
  EXPECT_TRUE(idle.AwaitEnd());
  EXPECT_TRUE(running.AwaitEnd());
  EXPECT_LT(std::chrono::steady_clock::now() - start, 3s);
}

}  // namespace
}  // namespace cofferdam::gateway
