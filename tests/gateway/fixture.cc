#include "fixture.h"

#include <cstdlib>

#include "base/log.h"
#include "text/model_hash.h"

namespace cofferdam::gateway {
namespace {

const std::string kModel = std::string(COFFERDAM_VOCABULARIES) + "/ggml-vocab-llama-spm.gguf";

}  // namespace

bool Stage::Accept(uint32_t pages_verified) {
  v1::GenerateEvent event;
  event.mutable_accepted()->set_prompt_tokens(static_cast<uint32_t>(request_->tokens_size()) - request_->resumed_tokens());
  event.mutable_accepted()->set_pages_verified(pages_verified);
  *event.mutable_attempt() = request_->attempt();
  return writer_->Write(event);
}

v1::GenerateEvent Stage::TokenEvent(uint32_t index, TokenId token) const {
  v1::GenerateEvent event;
  *event.mutable_attempt() = request_->attempt();
  event.mutable_token()->set_index(index);
  event.mutable_token()->set_token(token);
  event.mutable_token()->set_logprob(-0.5f);
  for (uint32_t i = 0; i < request_->top_logprobs(); ++i) {
    event.mutable_token()->add_top_tokens(i == 0 ? token : static_cast<TokenId>(300 + i));
    event.mutable_token()->add_top_logprobs(-0.5f * static_cast<float>(i + 1));
  }
  return event;
}

bool Stage::Token(TokenId token) { return writer_->Write(TokenEvent(request_->resumed_tokens() + sent_++, token)); }

bool Stage::Send(v1::GenerateEvent event) { return writer_->Write(event); }

grpc::Status Stage::Finish(v1::Finished::Reason reason, const Checks& checks) {
  v1::GenerateEvent event;
  *event.mutable_attempt() = request_->attempt();
  event.mutable_finished()->set_reason(reason);
  event.mutable_finished()->set_generated_tokens(sent_);
  for (const auto& [kind, pages] : checks) {
    v1::CheckCount* count = event.mutable_finished()->add_checks();
    count->set_kind(kind);
    count->set_pages(pages);
  }
  writer_->Write(event);
  return grpc::Status::OK;
}

bool Stage::AwaitCancel(std::chrono::milliseconds longest) const {
  const auto end = std::chrono::steady_clock::now() + longest;
  while (!cancelled()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

class FakeWorker::DecodeService final : public v1::Decode::Service {
 public:
  explicit DecodeService(FakeWorker* worker) : worker_(worker) {}
  grpc::Status Info(grpc::ServerContext* context, const v1::InfoRequest*, v1::WorkerInfo* info) override {
    return worker_->Info("decode", context, info);
  }
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateEvent>* writer) override {
    Script script;
    {
      const MutexLock lock(worker_->mutex_);
      worker_->requests_.push_back(*request);
      script = worker_->script_;
    }
    ++worker_->calls;
    Stage stage(context, request, writer);
    const grpc::Status status = script(stage);
    // A cancellation fails the write under way a moment before the context knows of it.
    if (status.error_code() == grpc::StatusCode::CANCELLED ? stage.AwaitCancel(500ms) : stage.cancelled()) ++worker_->cancels;
    return status;
  }

 private:
  FakeWorker* worker_;
};

class FakeWorker::PrefillService final : public v1::Prefill::Service {
 public:
  explicit PrefillService(FakeWorker* worker) : worker_(worker) {}
  grpc::Status Info(grpc::ServerContext* context, const v1::InfoRequest*, v1::WorkerInfo* info) override {
    return worker_->Info("prefill", context, info);
  }

 private:
  FakeWorker* worker_;
};

FakeWorker::FakeWorker(const std::string& model_hash)
    : decode_(std::make_unique<DecodeService>(this)), prefill_(std::make_unique<PrefillService>(this)) {
  info_.set_ready(true);
  info_.set_context_tokens(512);
  info_.set_kv_tokens(4096);
  info_.set_model_hash(model_hash);
  info_.mutable_layout()->set_layout_id("0123456789abcdef");
  info_.mutable_layout()->set_description("layout A");
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(decode_.get());
  builder.RegisterService(prefill_.get());
  builder.SetMaxReceiveMessageSize(64 << 20);
  server_ = builder.BuildAndStart();
  address_ = "127.0.0.1:" + std::to_string(port);
}

void FakeWorker::Play(Script script) {
  const MutexLock lock(mutex_);
  script_ = std::move(script);
}

void FakeWorker::ChangeInfo(const std::function<void(v1::WorkerInfo&)>& change) {
  const MutexLock lock(mutex_);
  change(info_);
}

grpc::Status FakeWorker::Info(const std::string& role, grpc::ServerContext* context, v1::WorkerInfo* info) const {
  while (silent && !context->IsCancelled()) std::this_thread::sleep_for(5ms);
  *info = InfoFor(role);
  return grpc::Status::OK;
}

v1::WorkerInfo FakeWorker::InfoFor(const std::string& role) const {
  const MutexLock lock(mutex_);
  v1::WorkerInfo info = info_;
  if (info.role().empty()) info.set_role(role);
  return info;
}

std::vector<v1::GenerateRequest> FakeWorker::requests() const {
  const MutexLock lock(mutex_);
  return requests_;
}

void FakeWorker::Shutdown() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

void GatewayTest::SetUp() {
  log::Init("test", std::getenv("COFFERDAM_TEST_LOG") != nullptr ? "debug" : "off", false);
  tokenizer_ = *text::Tokenizer::Load(kModel);
  hash_ = *text::ModelHash(kModel);
  options_.port = 0;
  options_.model_path = kModel;
  options_.served_model_names = {"test"};
  options_.poll_interval = 50ms;
  options_.poll_timeout = 1000ms;
  options_.drain_timeout = 200ms;
  AddWorker();
}

FakeWorker& GatewayTest::AddWorker() {
  workers_.push_back(std::make_unique<FakeWorker>(hash_));
  workers_.back()->Play(Says(Tokens("hello")));
  return *workers_.back();
}

void GatewayTest::StartWithoutWaiting() {
  for (const auto& worker : workers_) options_.decode_addresses.push_back(worker->address());
  options_.prefill_addresses.push_back(workers_[0]->address());
  auto gateway = Gateway::Create(options_);
  ASSERT_TRUE(gateway.ok()) << gateway.status();
  gateway_ = *std::move(gateway);
  thread_ = std::thread([this] { gateway_->Run(); });
}

void GatewayTest::Start() {
  StartWithoutWaiting();
  ASSERT_TRUE(Eventually([this] {
    const Response health = Ask("GET /health HTTP/1.1\r\nHost: test\r\n\r\n");
    return health.status == 200 && health.json()["decode_workers"] == workers_.size();
  }));
}

void GatewayTest::TearDown() {
  if (gateway_ != nullptr) {
    gateway_->Stop();
    thread_.join();
    gateway_.reset();
  }
  workers_.clear();
}

Response GatewayTest::Ask(const std::string& bytes) {
  RawClient client(port());
  client.Send(bytes);
  return client.Read();
}

std::vector<TokenId> GatewayTest::Tokens(const std::string& text) const { return *tokenizer_->Tokenize(text, false, false); }

Script GatewayTest::Says(std::vector<TokenId> tokens, v1::Finished::Reason reason) {
  return [tokens = std::move(tokens), reason](Stage& stage) {
    stage.Accept();
    for (const TokenId token : tokens) {
      if (!stage.Token(token)) return grpc::Status::CANCELLED;
    }
    return stage.Finish(reason);
  };
}

double GatewayTest::Metric(const std::string& name) {
  const Response response = Ask("GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n");
  const size_t at = response.body.find("\ncofferdam_" + name + " ");
  if (at == std::string::npos) return -1;
  return std::atof(response.body.c_str() + at + 12 + name.size());
}

bool GatewayTest::Eventually(const std::function<bool()>& condition, std::chrono::milliseconds longest) {
  const auto end = std::chrono::steady_clock::now() + kPatience * longest;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(10ms);
  }
  return true;
}

}  // namespace cofferdam::gateway
