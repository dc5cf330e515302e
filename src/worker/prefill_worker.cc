#include "worker/prefill_worker.h"

#include <utility>

namespace cofferdam::worker {
namespace {

constexpr auto kPublishEvery = std::chrono::milliseconds(10);

}  // namespace

PrefillWorker::PrefillWorker(std::unique_ptr<WorkerCore> core)
    : core_(std::move(core)),
      loop_(core_->engine(), *this, core_->options().scrub_bytes_per_second),
      heartbeats_(std::chrono::milliseconds(core_->options().heartbeat_ms)),
      fetcher_(*core_, loop_, heartbeats_, core_->options().pull_addresses.size()) {}

absl::StatusOr<std::unique_ptr<PrefillWorker>> PrefillWorker::Create(std::unique_ptr<WorkerCore> core) {
  auto worker = std::unique_ptr<PrefillWorker>(new PrefillWorker(std::move(core)));
  std::vector<std::shared_ptr<PrefillPeer>> pull_from;
  for (const std::string& address : worker->core_->options().pull_addresses) pull_from.push_back(worker->fetcher_.PeerAt(address));
  auto server = PageServer::Create({.core = *worker->core_,
                                    .loop = worker->loop_,
                                    .heartbeats = worker->heartbeats_,
                                    .fetcher = worker->fetcher_,
                                    .computes = true,
                                    .pull_from = std::move(pull_from)});
  if (!server.ok()) return server.status();
  worker->server_ = *std::move(server);
  worker->core_->pool().ZeroWith(&worker->zeroer_);
  worker->loop_.Start();
  return worker;
}

PrefillWorker::~PrefillWorker() {
  fetcher_.Stop();
  loop_.Stop();
}

void PrefillWorker::OnEvents(const std::vector<engine::Event>& events) {
  for (const engine::Event& event : events) {
    if (const auto* cached = std::get_if<engine::CachedPageWrongEvent>(&event)) core_->ledger().OnCachedWrong(cached->wrong);
  }
  server_->OnEvents(events);
}

void PrefillWorker::OnTurn(Clock::time_point now) {
  server_->OnTurn(now);
  fetcher_.OnTurn(now);
  if (now - published_ < kPublishEvery && core_->engine().HasWork()) return;
  published_ = now;
  std::vector<v1::Metric> metrics;
  server_->AddMetrics(metrics);
  fetcher_.AddMetrics(metrics);
  core_->Publish(server_->waiting(), std::move(metrics));
}

}  // namespace cofferdam::worker
