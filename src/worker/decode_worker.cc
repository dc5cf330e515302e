#include "worker/decode_worker.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error.h"
#include "base/faults.h"
#include "base/log.h"
#include "worker/generate_stream.h"
#include "worker/grpc_status.h"
#include "worker/wire.h"

namespace cofferdam::worker {
namespace {

constexpr auto kPublishEvery = std::chrono::milliseconds(10);

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace

DecodeWorker::DecodeWorker(std::unique_ptr<WorkerCore> core)
    : core_(std::move(core)),
      loop_(core_->engine(), *this, core_->options().scrub_bytes_per_second),
      heartbeats_(std::chrono::milliseconds(core_->options().heartbeat_ms)),
      fetcher_(*core_, loop_, heartbeats_, core_->options().prefill_addresses.size() + core_->options().pull_addresses.size()),
      finder_(loop_) {
  for (const std::string& address : core_->options().prefill_addresses) peers_.push_back(fetcher_.PeerAt(address));
  for (const std::string& address : core_->options().pull_addresses) pull_from_.push_back(fetcher_.PeerAt(address));
}

absl::StatusOr<std::unique_ptr<DecodeWorker>> DecodeWorker::Create(std::unique_ptr<WorkerCore> core) {
  auto worker = std::unique_ptr<DecodeWorker>(new DecodeWorker(std::move(core)));
  if (!worker->core_->options().fabric_address.empty()) {
    auto server = PageServer::Create(
        {.core = *worker->core_, .loop = worker->loop_, .heartbeats = worker->heartbeats_, .fetcher = worker->fetcher_});
    if (!server.ok()) return server.status();
    worker->server_ = *std::move(server);
  }
  worker->core_->pool().ZeroWith(&worker->zeroer_);
  worker->loop_.Start();
  return worker;
}

DecodeWorker::~DecodeWorker() {
  finder_.Stop();
  fetcher_.Stop();
  loop_.Stop();
}

std::vector<grpc::Service*> DecodeWorker::services() {
  std::vector<grpc::Service*> services{this};
  if (server_ != nullptr) services.push_back(&*server_);
  return services;
}

grpc::ServerUnaryReactor* DecodeWorker::Info(grpc::CallbackServerContext* context, const v1::InfoRequest*, v1::WorkerInfo* info) {
  *info = core_->Info();
  if (const std::string why_not = WhyNotReady(); info->ready() && !why_not.empty()) {
    info->set_ready(false);
    info->set_not_ready_reason(why_not);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

std::string DecodeWorker::WhyNotReady() const {
  std::string why_not;
  for (const std::shared_ptr<PrefillPeer>& peer : peers_) {
    const PrefillPeer::State state = peer->state();
    if (state.ready) return {};
    absl::StrAppend(&why_not, why_not.empty() ? "" : "; ", "prefill worker ", peer->address(), " is not used: ", state.why_not);
  }
  return why_not;
}

grpc::ServerWriteReactor<v1::GenerateEvent>* DecodeWorker::Generate(grpc::CallbackServerContext*,
                                                                    const v1::GenerateRequest* request) {
  auto stream = std::make_shared<GenerateStream>(*this, RequestId(next_request_++));
  stream->Begin(stream);
  loop_.Post([this, stream, copy = *request]() mutable { OnNew(std::move(stream), std::move(copy)); });
  return stream.get();
}

DecodeWorker::Request* DecodeWorker::Find(RequestId id) {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : &found->second;
}

absl::Status DecodeWorker::Judge(const engine::SequenceSpec& spec) {
  if (absl::Status status = core_->engine().CheckSpec(spec); !status.ok()) return status;
  if (queue_.size() >= core_->options().max_queue) {
    return WithFacts(absl::ResourceExhaustedError("the decode worker's queue is full; try again later"),
                     {.code = std::string(error_code::kQueueFull), .retry_after_s = 1});
  }
  if (!NeedsHandoff(spec)) return absl::OkStatus();
  uint64_t most_context = 0;
  for (const std::shared_ptr<PrefillPeer>& peer : peers_) {
    if (const PrefillPeer::State state = peer->state(); state.ready)
      most_context = std::max(most_context, state.info.context_tokens());
  }
  if (most_context == 0) {
    return WithFacts(absl::UnavailableError("no prefill worker is ready; try again later"),
                     {.code = std::string(error_code::kNoWorker), .retry_after_s = 1});
  }
  // No prefill worker promises to hold it: so nothing is reserved here in the first place.
  if (FaultIsOn(Fault::kPeerNotJudged)) return absl::OkStatus();
  if (spec.tokens.size() > most_context || spec.max_output > most_context - spec.tokens.size()) {
    return ContextLengthExceeded("prefill worker", spec.tokens.size(), spec.max_output, most_context);
  }
  return absl::OkStatus();
}

void DecodeWorker::OnNew(std::shared_ptr<GenerateStream> stream, v1::GenerateRequest wire) {
  ++counters_.requests;
  auto spec = FromWire(wire);
  if (absl::Status status = spec.ok() ? Judge(*spec) : spec.status(); !status.ok()) {
    core_->ledger().OnRejected({.request_id = wire.request_id(),
                                .domain = wire.domain(),
                                .prompt_tokens = static_cast<uint64_t>(wire.tokens_size()),
                                .max_output = wire.max_tokens()},
                               status);
    stream->End(ToGrpc(status));
    return;
  }
  spec->domain_key = kv::DomainKey(core_->options().cluster_secret, wire.domain(), wire.cache_salt());
  spec->domain = kv::DomainName(wire.domain(), wire.cache_salt());
  const RequestId id = stream->id();
  Request& request = requests_[id];
  request.id = id;
  request.stream = std::move(stream);
  request.attempt = wire.attempt();
  request.spec = *std::move(spec);
  request.request_id = wire.request_id();
  request.domain = wire.domain();
  request.cache_salt = wire.cache_salt();
  request.finish_transfer = wire.finish_transfer_on_disconnect();
  request.priority = wire.priority();
  Wait(request);
  StartWaiting();
}

void DecodeWorker::StartWaiting() {
  while (!queue_.empty()) {
    Request* request = Find(queue_.begin()->second);
    if (request == nullptr) {
      queue_.erase(queue_.begin());
      continue;
    }
    auto result = core_->engine().Start(request->spec);
    if (std::holds_alternative<kv::MustWait>(result)) return;
    queue_.erase(queue_.begin());
    if (auto* rejected = std::get_if<kv::Rejected>(&result)) {
      core_->ledger().OnRejected(OwnerOf(*request), rejected->status);
      Finish(*request, rejected->status);
      continue;
    }
    request->sequence = std::get<engine::Engine::Started>(result).sequence;
    by_sequence_.emplace(*request->sequence, request->id);
    core_->ledger().OnStarted(core_->engine(), *request->sequence, OwnerOf(*request));
    Begin(*request);
  }
}

void DecodeWorker::Begin(Request& request) {
  const uint32_t cached = core_->engine().CachedPages(*request.sequence);
  request.cached_tokens = cached * core_->layout().page_tokens();
  if (!LookElsewhere(request)) PlacePrompt(request);
}

void DecodeWorker::ComputeHere(Request& request) {
  ++counters_.local_prefills;
  core_->engine().Run(*request.sequence);
  Accept(request);
}

Ledger::Owner DecodeWorker::OwnerOf(const Request& request) {
  return {.request_id = request.request_id,
          .domain = request.domain,
          .prompt_tokens = request.spec.tokens.size(),
          .max_output = request.spec.max_output};
}

void DecodeWorker::Accept(Request& request) {
  if (std::exchange(request.accepted, true)) return;
  v1::GenerateEvent event;
  *event.mutable_attempt() = request.attempt;
  event.mutable_accepted()->set_prompt_tokens(static_cast<uint32_t>(request.spec.tokens.size() - request.spec.resumed_tokens));
  event.mutable_accepted()->set_pages_verified(request.pages_verified);
  event.mutable_accepted()->set_cached_tokens(request.cached_tokens);
  request.stream->Send(std::move(event));
}

// Ends the client's stream and forgets the request. What it still holds is released here, but for a fetch that
// waits for its reads: that one keeps the request until it is quiet.
void DecodeWorker::Finish(Request& request, const absl::Status& status) {
  request.stream->End(ToGrpc(status));
  request.retry = false;
  if (request.fetch.has_value()) return;
  if (request.sequence.has_value()) {
    by_sequence_.erase(*request.sequence);
    core_->engine().Release(*request.sequence);
    core_->ledger().OnEnded(*request.sequence, absl::IsCancelled(status) ? tenure::Outcome::kCancelled : tenure::Outcome::kFailed,
                            0, request.pages_verified);
  }
  requests_.erase(request.id);
}

void DecodeWorker::OnPreempted(Request& request, const engine::PreemptedEvent& event) {
  core_->ledger().OnEnded(event.sequence, tenure::Outcome::kPreempted, event.generated.size(), request.pages_verified);
  by_sequence_.erase(event.sequence);
  request.sequence.reset();
  const auto generated = static_cast<uint32_t>(event.generated.size());
  request.spec.tokens.insert(request.spec.tokens.end(), event.generated.begin(), event.generated.end());
  request.spec.resumed_tokens += generated;
  request.spec.max_output -= generated;
  request.generated += generated;
  request.checks += event.checks;
  request.handoffs = 0;
  request.pages_verified = 0;
  Wait(request);
}

void DecodeWorker::OnCancelled(RequestId id) {
  Request* request = Find(id);
  if (request == nullptr) return;
  ++counters_.cancelled;
  if (request->finish_transfer && request->sequence.has_value() && !request->abandoned) {
    request->abandoned = true;
    return;
  }
  if (request->fetch.has_value() && fetcher_.running(*request->fetch)) {
    fetcher_.Cancel(*request->fetch);
  } else {
    Finish(*request, absl::CancelledError("the request was cancelled"));
  }
}

void DecodeWorker::OnEvents(const std::vector<engine::Event>& events) {
  std::vector<engine::Event> of_readers;
  for (const engine::Event& event : events) {
    if (const auto* cached = std::get_if<engine::CachedPageWrongEvent>(&event)) {
      core_->ledger().OnCachedWrong(cached->wrong);
      continue;
    }
    const SequenceId sequence = SequenceOf(event);
    if (server_ != nullptr && server_->owns(sequence)) of_readers.push_back(event);
    const auto found = by_sequence_.find(sequence);
    if (found == by_sequence_.end()) continue;
    Request& request = requests_.at(found->second);
    v1::GenerateEvent wire;
    *wire.mutable_attempt() = request.attempt;
    std::visit(Overloaded{
                   [&](const engine::TokenEvent& token) {
                     wire.mutable_token()->set_index(token.index);
                     wire.mutable_token()->set_token(token.token);
                     wire.mutable_token()->set_logprob(token.logprob);
                     for (const model::TokenLogprob& top : token.top) {
                       wire.mutable_token()->add_top_tokens(top.token);
                       wire.mutable_token()->add_top_logprobs(top.logprob);
                     }
                     request.stream->Send(std::move(wire));
                     if (request.abandoned) Finish(request, absl::CancelledError("the client is gone"));
                   },
                   [&](const engine::FinishedEvent& finished) {
                     wire.mutable_finished()->set_reason(finished.reason == engine::FinishReason::kStop ? v1::Finished::STOP
                                                                                                        : v1::Finished::LENGTH);
                     wire.mutable_finished()->set_generated_tokens(request.generated + finished.generated);
                     kv::CheckCounts checks = request.checks;
                     checks += finished.checks;
                     ToWire(checks, wire.mutable_finished());
                     core_->ledger().OnEnded(sequence, tenure::Outcome::kFinished, finished.generated, request.pages_verified);
                     request.stream->Send(std::move(wire));
                     Finish(request, absl::OkStatus());
                   },
                   [&](const engine::FailedEvent& failed) {
                     log::error("request {}: {}", request.request_id, std::string(failed.status.message()));
                     core_->ledger().OnWrong(sequence, failed.wrong, tenure::kActionEnded, "found by a step or the scrubber");
                     core_->ledger().OnEnded(sequence,
                                             failed.wrong.empty() ? tenure::Outcome::kFailed : tenure::Outcome::kIntegrity, 0,
                                             request.pages_verified);
                     Finish(request, failed.status);
                   },
                   [&](const engine::GrownEvent& grown) { core_->ledger().OnTook(sequence, grown.page, grown.generation); },
                   [&](const engine::CopiedEvent& copied) { core_->ledger().OnTook(sequence, copied.page, copied.generation); },
                   [&](const engine::PreemptedEvent& preempted) { OnPreempted(request, preempted); },
                   [](const engine::SealedEvent&) {},
                   [](const engine::CachedPageWrongEvent&) {},
               },
               event);
  }
  if (!of_readers.empty()) server_->OnEvents(of_readers);
}

void DecodeWorker::OnTurn(Clock::time_point now) {
  StartWaiting();
  fetcher_.OnTurn(now);
  if (server_ != nullptr) server_->OnTurn(now);
  if (now - published_ < kPublishEvery && core_->engine().HasWork()) return;
  published_ = now;
  Publish();
}

void DecodeWorker::Publish() {
  using v1::Metric;
  std::vector<Metric> metrics;
  auto counter = [&](const char* name, uint64_t value, const char* help) {
    metrics.push_back(MakeMetric(name, Metric::COUNTER, static_cast<double>(value), help));
  };
  counter("requests_total", counters_.requests, "Requests received");
  counter("requests_cancelled_total", counters_.cancelled, "Requests cancelled by their client");
  counter("local_prefills_total", counters_.local_prefills, "Prompts computed by decode itself");
  counter("handoffs_total", fetcher_.counters().handoffs.started, "Handoffs opened");
  counter("handoffs_completed_total", fetcher_.counters().handoffs.completed, "Handoffs that covered their prompt");
  counter("handoffs_failed_total", fetcher_.counters().handoffs.failed, "Handoffs that failed or were cancelled");
  counter("handoff_retries_total", counters_.handoff_retries, "Handoffs opened again after a failure");
  constexpr std::pair<const char*, const char*> kPlaces[] = {
      {"prefill", "long"}, {"decode", "no_prefill_worker"}, {"decode", "short"}, {"decode", "cheaper"}};
  for (size_t i = 0; i < counters_.places.size(); ++i) {
    metrics.push_back(MakeMetric("prompt_places_total", Metric::COUNTER, static_cast<double>(counters_.places[i]),
                                 "Where the rest of a prompt that is not held here is computed, and why",
                                 {{"place", kPlaces[i].first}, {"reason", kPlaces[i].second}}));
  }
  fetcher_.AddMetrics(metrics);
  if (server_ != nullptr) server_->AddMetrics(metrics);
  core_->Publish(static_cast<uint32_t>(queue_.size()), std::move(metrics));
}

}  // namespace cofferdam::worker
