// Pages that one worker holds and another asks for: conversations that move between workers.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "e2e/cluster.h"

namespace cofferdam::e2e {
namespace {

constexpr int kPageTokens = 16;
using Tokens = std::vector<int32_t>;

Tokens Numbers(unsigned seed, int length) {
  std::mt19937 random(seed);
  Tokens tokens;
  for (int i = 0; i < length; ++i) tokens.push_back(100 + static_cast<int32_t>(random() % 600));
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Workers that are started one by one and asked as a gateway asks them; one compute thread each.
class Pull : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "cofferdam-pull-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    std::ofstream(folder_ + "/secret") << std::string(40, 's') << "\n";
  }
  void TearDown() override {
    processes_.clear();
    std::filesystem::remove_all(folder_);
  }

  std::string Socket(const std::string& name) const { return "unix:" + folder_ + "/" + name + ".sock"; }
  void Start(const std::string& role, const std::string& name, const std::vector<std::string>& more = {}) {
    const std::string fabric = "shm:" + folder_ + "/" + name + ".fabric";
    std::vector<std::string> arguments{
        role, "--listen",    Socket(name), "--fabric",     fabric, "--cluster-secret-file", folder_ + "/secret", "--threads",
        "1",  "--page-size", "16",         "--tenure-log", "off"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    processes_.emplace(std::piecewise_construct, std::forward_as_tuple(name),
                       std::forward_as_tuple(arguments, folder_ + "/" + name + ".log"));
    ASSERT_TRUE(processes_.at(name).Says("ready on")) << processes_.at(name).log();
  }
  std::string LogOf(const std::string& name) const { return processes_.at(name).log(); }
  // Until it has found `peers` workers to fetch pages from.
  void AwaitPeers(const std::string& name, int peers) const {
    ASSERT_TRUE(Eventually([&] {
      const std::string log = LogOf(name), mark = "is connected";
      int count = 0;
      for (size_t at = log.find(mark); at != std::string::npos; at = log.find(mark, at + 1)) ++count;
      return count >= peers;
    })) << LogOf(name);
  }

  // Two decode workers, of which the second pulls from the first.
  void StartWarmAndCold() {
    Start("decode", "warm");
    Start("decode", "cold", {"--pull-from", Socket("warm")});
    AwaitPeers("cold", 1);
  }

  struct Answer {
    Tokens tokens;
    uint32_t cached_tokens = 0;
  };
  // The greedy answer of `length` tokens.
  Answer Ask(const std::string& name, const Tokens& prompt, uint32_t length, const std::string& salt = "") const {
    const auto stub = v1::Decode::NewStub(grpc::CreateChannel(Socket(name), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience * 30s);
    context.set_wait_for_ready(true);  // a worker of the same name may have been there before
    v1::GenerateRequest request;
    request.set_request_id("question");
    request.mutable_attempt()->set_boot_id(7);
    request.set_domain("tenant");
    request.set_cache_salt(salt);
    request.mutable_tokens()->Assign(prompt.begin(), prompt.end());
    request.set_max_tokens(length);
    const auto stream = stub->Generate(&context, request);
    Answer answer;
    for (v1::GenerateEvent event; stream->Read(&event);) {
      if (event.has_accepted()) answer.cached_tokens = event.accepted().cached_tokens();
      if (event.has_token()) answer.tokens.push_back(event.token().token());
    }
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(status.ok()) << name << ": " << status.error_message();
    EXPECT_EQ(answer.tokens.size(), length);
    return answer;
  }

  // Asks for the pages of these tokens as a worker that pulls does: how the run ended, once it has announced `pages` of them and
  // was closed.
  grpc::Status PullRaw(const std::string& name, const Tokens& tokens, int pages) const {
    const auto stub = v1::Prefill::NewStub(grpc::CreateChannel(Socket(name), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience * 10s);
    v1::PrefillRequest request;
    request.mutable_attempt()->set_boot_id(8);
    v1::Open& open = *request.mutable_open();
    open.set_request_id("pull");
    open.set_domain("tenant");
    open.set_layout_id(Info(name).layout().layout_id());
    open.mutable_tokens()->Assign(tokens.begin(), tokens.end());
    open.set_cached_only(true);
    const auto stream = stub->Run(&context);
    EXPECT_TRUE(stream->Write(request));
    int announced = 0;
    for (v1::PrefillEvent event; announced < pages && stream->Read(&event);) announced += event.sealed().pages_size();
    EXPECT_TRUE(announced == 0 || announced == pages) << announced;
    stream->WritesDone();
    return stream->Finish();
  }

  v1::WorkerInfo Info(const std::string& name) const {
    const auto stub = v1::Prefill::NewStub(grpc::CreateChannel(Socket(name), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience * 2s);
    context.set_wait_for_ready(true);
    v1::WorkerInfo info;
    EXPECT_TRUE(stub->Info(&context, {}, &info).ok()) << name;
    return info;
  }
  // Over all labels, or over those whose first is `label`.
  static double Value(const v1::WorkerInfo& info, const std::string& metric, const std::string& label = "") {
    double sum = 0;
    for (const v1::Metric& m : info.metrics()) {
      if (m.name() == metric && (label.empty() || (m.label_values_size() > 0 && m.label_values(0) == label))) sum += m.value();
    }
    return sum;
  }
  double Metric(const std::string& name, const std::string& metric, const std::string& label = "") const {
    return Value(Info(name), metric, label);
  }
  void ExpectWholePools(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      EXPECT_TRUE(Eventually([&] {
        const v1::WorkerInfo info = Info(name);
        return Value(info, "kv_pages", "free") + Value(info, "kv_pages", "cached") == Value(info, "kv_pages_total");
      })) << name;
      EXPECT_EQ(Metric(name, "checks_failed_total"), 0) << name;
      EXPECT_EQ(Metric(name, "incidents_total"), 0) << name;
    }
  }

  std::string folder_;
  std::map<std::string, Process> processes_;
};

TEST_F(Pull, AColdWorkerTakesTheConversationThatAnotherHolds) {
  StartWarmAndCold();
  const Tokens prompt = Numbers(1, 20 * kPageTokens + 5);
  const Tokens expected = Ask("warm", prompt, 8).tokens;
  const Answer answer = Ask("cold", prompt, 8);
  EXPECT_EQ(answer.tokens, expected);
  EXPECT_EQ(answer.cached_tokens, 20u * kPageTokens);
  EXPECT_EQ(Metric("cold", "pulls_completed_total"), 1);
  EXPECT_EQ(Metric("cold", "pulled_pages_total"), 20);
  EXPECT_EQ(Metric("cold", "checks_total", "seal"), 20);
  EXPECT_EQ(Metric("cold", "checks_total", "content"), 20);
  EXPECT_EQ(Metric("warm", "cached_streams_total"), 1);
  // They are its own now.
  EXPECT_EQ(Ask("cold", prompt, 8).tokens, expected);
  EXPECT_EQ(Metric("cold", "pulls_total"), 1);
  ExpectWholePools({"warm", "cold"});
}

TEST_F(Pull, NothingIsFoundAcrossDomains) {
  StartWarmAndCold();
  const Tokens prompt = Numbers(2, 8 * kPageTokens + 5);
  const Tokens expected = Ask("warm", prompt, 8, "one").tokens;
  const Answer other = Ask("cold", prompt, 8, "two");
  EXPECT_EQ(other.tokens, expected) << "the same question has the same answer";
  EXPECT_EQ(other.cached_tokens, 0u);
  EXPECT_EQ(Metric("cold", "pulls_total"), 0);
  EXPECT_EQ(Ask("cold", prompt, 8, "one").cached_tokens, 8u * kPageTokens);
  ExpectWholePools({"warm", "cold"});
}

TEST_F(Pull, APrefillWorkerStartsFromPagesThatDecodeMade) {
  Start("prefill", "prefill", {"--pull-from", Socket("decode")});
  Start("decode", "decode", {"--prefill", Socket("prefill"), "--local-prefill-tokens", "1"});
  AwaitPeers("prefill", 1);
  AwaitPeers("decode", 1);
  const Tokens question = Numbers(3, 4 * kPageTokens);
  // The answer fills pages that the prefill worker never saw.
  const Tokens talk = question + Ask("decode", question, 6 * kPageTokens).tokens + Numbers(4, 10 * kPageTokens);
  const double computed = Metric("prefill", "prompt_tokens_total");
  const Answer second = Ask("decode", talk, 8);
  EXPECT_GE(second.cached_tokens, 9u * kPageTokens);
  EXPECT_EQ(Metric("prefill", "pulls_completed_total"), 1) << LogOf("prefill");
  EXPECT_GE(Metric("prefill", "pulled_pages_total"), 5);
  EXPECT_GE(Metric("prefill", "checks_total", "content"), 5);
  EXPECT_LE(Metric("prefill", "prompt_tokens_total") - computed, 11 * kPageTokens) << "of 20 pages";
  EXPECT_EQ(Metric("decode", "prompt_places_total", "prefill"), 2);
  Start("decode", "alone");
  EXPECT_EQ(second.tokens, Ask("alone", talk, 8).tokens);
  ExpectWholePools({"prefill", "decode"});
}

TEST_F(Pull, AColdPairGoesOnFromTheThirdWorkersPages) {
  Start("decode", "warm");
  Start("prefill", "prefill", {"--pull-from", Socket("decode")});
  Start("decode", "decode", {"--prefill", Socket("prefill"), "--pull-from", Socket("warm"), "--local-prefill-tokens", "1"});
  AwaitPeers("prefill", 1);
  AwaitPeers("decode", 2);
  const Tokens question = Numbers(5, 12 * kPageTokens);
  Ask("warm", question, 8);
  const Tokens talk = question + Numbers(6, 4 * kPageTokens);
  const Answer second = Ask("decode", talk, 8);
  EXPECT_EQ(second.cached_tokens, 12u * kPageTokens) << LogOf("decode");
  EXPECT_EQ(Metric("decode", "pulls_completed_total"), 1);
  EXPECT_EQ(Metric("decode", "handoffs_completed_total"), 1);
  EXPECT_EQ(Metric("warm", "cached_streams_total"), 1);
  EXPECT_EQ(Metric("prefill", "pulled_pages_total"), 12) << LogOf("prefill");
  EXPECT_LE(Metric("prefill", "prompt_tokens_total"), 4 * kPageTokens);
  EXPECT_EQ(second.tokens, Ask("warm", talk, 8).tokens);
  ExpectWholePools({"warm", "prefill", "decode"});
}

TEST_F(Pull, AWorkerThatDiesIsDoneWithout) {
  StartWarmAndCold();
  const Tokens prompt = Numbers(7, 8 * kPageTokens + 5);
  const Tokens expected = Ask("warm", prompt, 8).tokens;
  processes_.erase("warm");
  EXPECT_EQ(Ask("cold", prompt, 8).tokens, expected);
  ExpectWholePools({"cold"});
}

// Whatever moment it comes at: before the pull, in its middle, or when it is over.
class PullInterrupted : public Pull, public testing::WithParamInterface<int> {};
TEST_P(PullInterrupted, CostsNothingButTime) {
  constexpr int kTrials = 10, kPages = 100;
  Start("decode", "alone");
  Start("decode", "warm");
  // One page at a time, so that there is a middle.
  Start("decode", "cold",
        {"--pull-from", Socket("warm"), "--transfer-window-bytes", "1", "--heartbeat-ms", "50", "--kv-tokens", "6000"});
  std::mt19937 random(9);
  for (int trial = 0; trial < kTrials; ++trial) {
    const Tokens prompt = Numbers(100 + static_cast<unsigned>(trial), kPages * kPageTokens + 5);
    const Tokens expected = Ask("alone", prompt, 4).tokens;
    ASSERT_EQ(Ask("warm", prompt, 4).tokens, expected);
    if (GetParam() == SIGKILL) AwaitPeers("cold", trial + 1);
    Answer answer;
    {
      std::jthread client([&] { answer = Ask("cold", prompt, 4); });
      // The first one is through when it happens: so there are pulls at all.
      if (trial == 0) client.join();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 16000));
      processes_.at("warm").Signal(GetParam());
    }
    EXPECT_EQ(answer.tokens, expected) << trial;
    if (GetParam() == SIGSTOP) {
      processes_.at("warm").Signal(SIGCONT);
      std::this_thread::sleep_for(300ms);  // until the other one counts on it again
    } else {
      processes_.erase("warm");
      Start("decode", "warm");
    }
  }
  const v1::WorkerInfo info = Info("cold");
  const double started = Value(info, "pulls_total");
  EXPECT_EQ(started, Value(info, "pulls_completed_total") + Value(info, "pulls_failed_total"));
  EXPECT_GE(Value(info, "pulls_completed_total"), 1);
  std::printf("%.0f of %d asked the other one for pages, %.0f got them all\n", started, kTrials,
              Value(info, "pulls_completed_total"));
  ExpectWholePools({"cold", "warm"});
}
INSTANTIATE_TEST_SUITE_P(Signals, PullInterrupted, testing::Values(SIGKILL, SIGSTOP),
                         [](const auto& info) { return info.param == SIGSTOP ? "Stall" : "Death"; });

TEST_F(Pull, WhatWasEvictedAfterItWasFoundIsRefusedAndNothingIsHeld) {
  // One context fits, and little more.
  Start("decode", "warm", {"--kv-tokens", "2304"});
  const Tokens prompt = Numbers(10, 20 * kPageTokens + 5), whole(prompt.begin(), prompt.end() - 5);
  Ask("warm", prompt, 4);
  EXPECT_EQ(PullRaw("warm", whole, 20).error_code(), grpc::StatusCode::CANCELLED) << "by the reader";
  for (unsigned i = 0; i < 3; ++i) Ask("warm", Numbers(11 + i, 110 * kPageTokens), 4);
  const grpc::Status gone = PullRaw("warm", whole, 20);
  EXPECT_EQ(gone.error_code(), grpc::StatusCode::NOT_FOUND) << gone.error_message();
  ExpectWholePools({"warm"});
}

// The same in what `up` starts, when it is asked to.
TEST(PullAnswers, OfUpLetThePrefillWorkerStartFromThem) {
  Cluster cluster({"--page-size", "16", "--local-prefill-tokens", "1", "--pull-answers"});
  ASSERT_TRUE(cluster.Start());
  ASSERT_TRUE(Eventually([&] { return cluster.log().find("decode.sock is connected") != std::string::npos; })) << cluster.log();
  const auto ask = [&](const Tokens& prompt, uint32_t length) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience * 30s);
    v1::GenerateRequest request;
    request.set_request_id("question");
    request.mutable_attempt()->set_boot_id(7);
    request.set_domain("tenant");
    request.mutable_tokens()->Assign(prompt.begin(), prompt.end());
    request.set_max_tokens(length);
    const auto stub = cluster.Decode();
    const auto stream = stub->Generate(&context, request);
    Tokens answer;
    for (v1::GenerateEvent event; stream->Read(&event);) {
      if (event.has_token()) answer.push_back(event.token().token());
    }
    EXPECT_TRUE(stream->Finish().ok());
    return answer;
  };
  const Tokens question = Numbers(12, 4 * kPageTokens);
  ask(question + ask(question, 6 * kPageTokens) + Numbers(13, 10 * kPageTokens), 4);
  EXPECT_EQ(cluster.Metric("prefill", "pulls_completed_total"), 1) << cluster.log();
  EXPECT_GE(cluster.Metric("prefill", "pulled_pages_total"), 5);
  EXPECT_TRUE(cluster.NobodyHoldsAPage());
}

}  // namespace
}  // namespace cofferdam::e2e
