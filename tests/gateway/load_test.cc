// Many at once, and clients that do not read.
#include <future>

#include "fixture.h"

namespace cofferdam::gateway {
namespace {

TEST_F(GatewayTest, AThousandStreamsAtOnce) {
  constexpr int kStreams = 1000;
  std::atomic<int> accepted{0};
  // The fake's streams are threads: they wait without waking up, or a thousand of them would starve its Info.
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  worker().Play([&accepted, gone](Stage& stage) {
    stage.Accept();
    ++accepted;
    gone.wait_for(60s);
    for (int i = 0; i < 3; ++i) stage.Token(15043);
    return stage.Finish(v1::Finished::LENGTH);
  });
  options_.threads = 2;
  Start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    ASSERT_TRUE(clients.back()->connected());
    ASSERT_TRUE(clients.back()->Send(Post("/v1/completions", R"({"prompt":"x","stream":true,"max_tokens":3})")));
  }
  ASSERT_TRUE(Eventually([&] { return accepted == kStreams; }, 60000ms)) << accepted;
  EXPECT_EQ(Metric("num_requests_running"), kStreams);
  go.set_value();
  int good = 0;
  for (const auto& client : clients) {
    const Response response = client->Read();
    if (response.complete && TextOf(response.body) == " Hello Hello Hello" && FinishReasonOf(response.body) == "length") ++good;
  }
  EXPECT_EQ(good, kStreams);
  EXPECT_TRUE(Eventually([this] { return Metric("num_requests_running") == 0; }));
}

TEST_F(GatewayTest, ASlowReaderHoldsBackItsWorker) {
  constexpr int kTokens = 200000;  // 40 MB of events, if nobody held them back
  std::atomic<int> sent{0};
  worker().ChangeInfo([](v1::WorkerInfo& info) { info.set_context_tokens(1 << 20); });
  worker().Play([&](Stage& stage) {
    stage.Accept();
    for (int i = 0; i < kTokens; ++i) {
      if (!stage.Token(15043)) return grpc::Status::CANCELLED;
      ++sent;
    }
    return stage.Finish(v1::Finished::LENGTH);
  });
  Start();
  RawClient slow(port(), 4096);
  slow.Send(Post("/v1/completions", R"({"prompt":"x","stream":true,"max_tokens":500000})"));
  ASSERT_TRUE(Eventually([&] { return sent > 0; }));
  // It comes to a halt: sockets and queue are full, and nothing else grows.
  int before = -1;
  ASSERT_TRUE(Eventually(
      [&] {
        const int now = sent;
        const bool halted = now == before;
        before = now;
        std::this_thread::sleep_for(300ms);
        return halted;
      },
      60000ms));
  EXPECT_LT(before, kTokens / 2);
  // Others are not held up.
  worker().Play(Says(Tokens("hello")));
  EXPECT_EQ(Complete({{"prompt", "x"}}).status, 200);
  // And it gets everything once it reads.
  const Response response = slow.Read();
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(FinishReasonOf(response.body), "length");
  EXPECT_EQ(EventsOf(response.body).size(), static_cast<size_t>(kTokens) + 2);
}

TEST_F(GatewayTest, AClientThatNeverReadsIsDropped) {
  options_.write_timeout = 300ms;
  worker().ChangeInfo([](v1::WorkerInfo& info) { info.set_context_tokens(1 << 20); });
  worker().Play([](Stage& stage) {
    stage.Accept();
    while (stage.Token(15043)) {
    }
    return grpc::Status::CANCELLED;
  });
  Start();
  RawClient slow(port(), 4096);
  slow.Send(Post("/v1/completions", R"({"prompt":"x","stream":true,"max_tokens":500000})"));
  EXPECT_TRUE(Eventually([this] { return worker().cancels == 1; }, 60000ms));
  EXPECT_EQ(Metric("client_disconnects_total"), 1);
}

TEST_F(GatewayTest, LongPromptsAreReadWhole) {
  worker().ChangeInfo([](v1::WorkerInfo& info) { info.set_context_tokens(2'000'000); });
  Start();
  std::vector<int> tokens(1'000'000, 15043);
  const Response response = Complete({{"prompt", tokens}});
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.json()["usage"]["prompt_tokens"], 1'000'000);
  EXPECT_EQ(worker().requests().back().tokens_size(), 1'000'000);
  std::string text;
  for (int i = 0; i < 50000; ++i) text += "word ";
  EXPECT_EQ(Complete({{"prompt", text}}).status, 200);
}

}  // namespace
}  // namespace cofferdam::gateway
