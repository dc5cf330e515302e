// A gateway between raw sockets and scripted workers.
#ifndef COFFERDAM_TESTS_GATEWAY_FIXTURE_H_
#define COFFERDAM_TESTS_GATEWAY_FIXTURE_H_

#include <cofferdam.grpc.pb.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "gateway/gateway.h"
#include "support/http_client.h"
#include "support/patience.h"
#include "text/tokenizer.h"

namespace cofferdam::gateway {

using http::EventsOf;
using http::FinishReasonOf;
using http::Json;
using http::Post;
using http::RawClient;
using http::Response;
using http::TextOf;
using namespace std::chrono_literals;

// Kinds of checks and their pages, as Finished carries them.
using Checks = std::vector<std::pair<std::string, uint64_t>>;

// The server's end of one Generate stream, with the words of a script.
class Stage {
 public:
  Stage(grpc::ServerContext* context, const v1::GenerateRequest* request, grpc::ServerWriter<v1::GenerateEvent>* writer)
      : context_(context), request_(request), writer_(writer) {}
  const v1::GenerateRequest& request() const { return *request_; }
  bool Accept(uint32_t pages_verified = 1);
  // With the next index, counted from the tokens that were sent before.
  bool Token(TokenId token);
  bool Send(v1::GenerateEvent event);
  // With as many of the most likely tokens as were asked for: the token itself, at -0.5, then others, at -1, -1.5, ...
  v1::GenerateEvent TokenEvent(uint32_t index, TokenId token) const;
  grpc::Status Finish(v1::Finished::Reason reason, const Checks& checks = {});
  bool cancelled() const { return context_->IsCancelled(); }
  // Returns whether the call was cancelled within `longest`.
  bool AwaitCancel(std::chrono::milliseconds longest) const;

 private:
  grpc::ServerContext* context_;
  const v1::GenerateRequest* request_;
  grpc::ServerWriter<v1::GenerateEvent>* writer_;
  uint32_t sent_ = 0;
};

using Script = std::function<grpc::Status(Stage&)>;

// A decode and a prefill worker in one server; the script plays Generate.
class FakeWorker {
 public:
  explicit FakeWorker(const std::string& model_hash);
  ~FakeWorker() { Shutdown(); }
  const std::string& address() const { return address_; }
  void Play(Script script);
  void ChangeInfo(const std::function<void(v1::WorkerInfo&)>& change);
  void Shutdown();
  // The requests that came so far.
  std::vector<v1::GenerateRequest> requests() const;
  std::atomic<bool> silent{false};  // Info is not answered, as by a stopped process
  std::atomic<int> calls{0};
  std::atomic<int> cancels{0};  // calls whose script saw a cancellation, see Stage::AwaitCancel

 private:
  class DecodeService;
  class PrefillService;
  friend class DecodeService;
  grpc::Status Info(const std::string& role, grpc::ServerContext* context, v1::WorkerInfo* info) const;
  v1::WorkerInfo InfoFor(const std::string& role) const;

  mutable Mutex mutex_;
  Script script_;
  v1::WorkerInfo info_;
  std::vector<v1::GenerateRequest> requests_;
  std::string address_;
  std::unique_ptr<v1::Decode::Service> decode_;
  std::unique_ptr<v1::Prefill::Service> prefill_;
  std::unique_ptr<grpc::Server> server_;
};

class GatewayTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Starts the gateway in front of the workers and waits until it is ready.
  void Start();
  void StartWithoutWaiting();
  FakeWorker& worker(size_t i = 0) { return *workers_.at(i); }
  FakeWorker& AddWorker();
  Response Ask(const std::string& bytes);
  Response Complete(const Json& body) { return Ask(Post("/v1/completions", body.dump())); }
  Response Chat(const Json& body) { return Ask(Post("/v1/chat/completions", body.dump())); }
  uint16_t port() const { return gateway_->port(); }
  Gateway& gateway() { return *gateway_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  std::vector<TokenId> Tokens(const std::string& text) const;
  // Accepts, sends the tokens, finishes.
  Script Says(std::vector<TokenId> tokens, v1::Finished::Reason reason = v1::Finished::STOP);
  // The value of a metric of /metrics; -1 when it is not there.
  double Metric(const std::string& name);
  bool Eventually(const std::function<bool()>& condition, std::chrono::milliseconds longest = 3000ms);

  GatewayOptions options_;

 private:
  std::unique_ptr<const text::Tokenizer> tokenizer_;
  std::string hash_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::unique_ptr<Gateway> gateway_;
  std::thread thread_;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_TESTS_GATEWAY_FIXTURE_H_
