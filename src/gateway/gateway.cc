#include "gateway/gateway.h"

#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "gateway/connection.h"
#include "gateway/service.h"
#include "text/model_hash.h"

#ifndef COFFERDAM_VERSION
#define COFFERDAM_VERSION "0.1.0"
#endif

namespace cofferdam::gateway {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kFingerprintDigits = 12;
constexpr size_t kMaxRefusals = 64;  // answered at a time; more are closed without a word
constexpr std::chrono::seconds kCallsEnd{10};

void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) log::warn("the limit of open files stays as it is");
}

absl::Status Listen(const GatewayOptions& options, tcp::acceptor& acceptor) {
  error_code error;
  const std::string host = options.host == "localhost" ? "127.0.0.1" : options.host;
  const asio::ip::address address = asio::ip::make_address(host, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat("host '", options.host, "' is not an IP address"));
  const tcp::endpoint endpoint(address, options.port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot listen on ", options.host, ":", options.port, ": ", error.message()));
}

// None: everybody is let in.
absl::StatusOr<std::optional<std::vector<KeyRecord>>> Keys(const GatewayOptions& options) {
  if (IsOpen(options)) return std::nullopt;
  if (!options.key_file.empty()) return ReadKeyFile(options.key_file);
  return RecordsOfPlainKeys(options.api_keys);
}

absl::StatusOr<std::unique_ptr<Service>> MakeService(GatewayOptions options) {
  if (options.served_model_names.empty()) {
    options.served_model_names.push_back(std::filesystem::path(options.model_path).stem().string());
  }
  auto tokenizer = text::Tokenizer::Load(options.model_path);
  if (!tokenizer.ok()) return tokenizer.status();
  auto chat = text::ChatTemplate::Create(**tokenizer);
  if (!chat.ok()) return chat.status();
  if (!(*chat)->from_file()) log::warn("the model file has no chat template; ChatML is used");
  const absl::StatusOr<std::string> hash = text::ModelHash(options.model_path);
  if (!hash.ok()) return hash.status();
  auto keys = Keys(options);
  if (!keys.ok()) return keys.status();
  auto service = std::make_unique<Service>(std::move(options), *std::move(tokenizer), *std::move(chat), *hash, *std::move(keys));
  if (!service->options.key_file.empty()) {
    service->key_watch = std::make_unique<KeyWatch>(service->keys, service->options.key_file, service->options.key_file_interval);
  }
  service->version = COFFERDAM_VERSION;
  service->fingerprint = absl::StrCat("fp_", hash->substr(0, kFingerprintDigits), "_", service->version);
  service->created = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return service;
}

}  // namespace

// Threads: `connections_` is guarded; the acceptor and the drain timer live on `strand_`.
class Gateway::Impl {
 public:
  explicit Impl(std::unique_ptr<Service> service)
      : service_(std::move(service)),
        context_(service_->options.threads),
        strand_(asio::make_strand(context_)),
        acceptor_(strand_),
        drain_(strand_) {}

  ~Impl() {
    service_->workers.Stop();
    service_->text_pool.join();
    if (!service_->calls->WaitUntilNone(kCallsEnd)) {
      log::error("{} calls have not ended", service_->calls->count());
      CD_CHECK(false, "a call that gRPC still holds would use what is freed now");
    }
  }

  absl::Status Start() {
    if (absl::Status status = Listen(service_->options, acceptor_); !status.ok()) return status;
    port_ = acceptor_.local_endpoint().port();
    service_->workers.Start();
    return absl::OkStatus();
  }

  uint16_t port() const { return port_; }

  void Run() {
    asio::co_spawn(strand_, Accept(this), asio::detached);
    std::vector<std::thread> threads;
    for (int i = 1; i < service_->options.threads; ++i) threads.emplace_back([this] { RunThread(); });
    RunThread();
    for (std::thread& thread : threads) thread.join();
  }

  void Stop() {
    service_->stopping = true;
    asio::post(strand_, [this] {
      error_code ignored;
      acceptor_.close(ignored);
      if (std::exchange(draining_, true)) return;
      StopConnections(false);
      drain_.expires_after(service_->options.drain_timeout);
      drain_.async_wait([this](error_code) { StopConnections(true); });
      EndDrainIfEmpty();
    });
  }

 private:
  void RunThread() {
    // Coroutines catch at their top; what gets here anyway must not end the process.
    for (;;) {
      try {
        context_.run();
        return;
      } catch (const std::exception& problem) {
        log::error("an exception reached a thread of the gateway: {}", problem.what());
      }
    }
  }

  static asio::awaitable<void> Accept(Impl* self) {
    while (!self->service_->stopping) {
      error_code error;
      tcp::socket socket(asio::make_strand(self->context_));
      co_await self->acceptor_.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
      if (self->service_->stopping || error == asio::error::operation_aborted) break;
      if (error) {
        // Most likely out of descriptors: those in use come back.
        log::warn("cannot accept a connection: {}", error.message());
        asio::steady_timer pause(self->strand_, std::chrono::milliseconds(100));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      socket.set_option(tcp::no_delay(true), error);
      self->Admit(std::move(socket));
    }
  }

  void Admit(tcp::socket socket) {
    const bool full = served_ >= service_->options.max_connections;
    if (full) ++service_->metrics.connections_refused_total;
    if (full && refusing_ >= kMaxRefusals) return;
    const auto strand = socket.get_executor();
    const auto connection = std::make_shared<Connection>(*service_, std::move(socket));
    const uint64_t id = next_id_++;
    connections_[id] = connection;
    size_t& counter = full ? refusing_ : served_;
    ++counter;
    const auto done = [this, id, &counter](const std::exception_ptr& error) {
      if (error != nullptr) log::error("connection {} ended with an unexpected exception", id);
      asio::post(strand_, [this, id, &counter] {
        --counter;
        connections_.erase(id);
        EndDrainIfEmpty();
      });
    };
    asio::co_spawn(strand, full ? Connection::Refuse(connection) : Connection::Serve(connection), done);
  }

  void StopConnections(bool force) {
    for (const auto& [id, weak] : connections_) {
      if (const auto connection = weak.lock()) connection->RequestStop(force);
    }
  }

  void EndDrainIfEmpty() {
    if (draining_ && connections_.empty()) drain_.cancel();
  }

  // Declared before the context: handlers that die with the context may still use it.
  std::unique_ptr<Service> service_;
  asio::io_context context_;
  asio::strand<asio::io_context::executor_type> strand_;
  // Everything below is used on strand_ only.
  tcp::acceptor acceptor_;
  asio::steady_timer drain_;
  std::map<uint64_t, std::weak_ptr<Connection>> connections_;
  uint64_t next_id_ = 0;
  size_t served_ = 0;
  size_t refusing_ = 0;
  bool draining_ = false;
  uint16_t port_ = 0;
};

Gateway::Gateway(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gateway::~Gateway() = default;

absl::StatusOr<std::unique_ptr<Gateway>> Gateway::Create(GatewayOptions options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  RaiseFileLimit();
  absl::StatusOr<std::unique_ptr<Service>> service = MakeService(std::move(options));
  if (!service.ok()) return service.status();
  auto impl = std::make_unique<Impl>(*std::move(service));
  if (absl::Status status = impl->Start(); !status.ok()) return status;
  log::info("gateway listens on port {}", impl->port());
  return std::unique_ptr<Gateway>(new Gateway(std::move(impl)));
}

uint16_t Gateway::port() const { return impl_->port(); }
void Gateway::Run() { impl_->Run(); }
void Gateway::Stop() { impl_->Stop(); }

}  // namespace cofferdam::gateway
