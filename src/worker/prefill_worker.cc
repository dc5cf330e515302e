#include "worker/prefill_worker.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "worker/grpc_status.h"
#include "worker/prefill_stream.h"
#include "worker/wire.h"

namespace cofferdam::worker {
namespace {

constexpr auto kPublishEvery = std::chrono::milliseconds(10);
constexpr int kSilentBeats = 3;    // a peer that misses so many is silent
constexpr int kStalledBeats = 60;  // pages that are held for so long without being read are let go

}  // namespace

PrefillWorker::PrefillWorker(std::unique_ptr<WorkerCore> core)
    : core_(std::move(core)),
      loop_(core_->engine(), *this, core_->options().scrub_bytes_per_second),
      heartbeats_(std::chrono::milliseconds(core_->options().heartbeat_ms)) {}

absl::StatusOr<std::unique_ptr<PrefillWorker>> PrefillWorker::Create(std::unique_ptr<WorkerCore> core) {
  auto worker = std::unique_ptr<PrefillWorker>(new PrefillWorker(std::move(core)));
  WorkerCore& c = *worker->core_;
  auto source = fabric::Serve(c.options().fabric_address, c.region().fd(),
                              {.region = c.boot_id(), .bytes = c.region().bytes().size(), .layout_id = c.layout().id()});
  if (!source.ok()) return source.status();
  worker->source_ = *std::move(source);
  c.pool().ZeroWith(&worker->zeroer_);
  worker->loop_.Start();
  return worker;
}

PrefillWorker::~PrefillWorker() { loop_.Stop(); }

grpc::ServerUnaryReactor* PrefillWorker::Info(grpc::CallbackServerContext* context, const v1::InfoRequest*, v1::WorkerInfo* info) {
  *info = core_->Info();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerBidiReactor<v1::PrefillRequest, v1::PrefillEvent>* PrefillWorker::Run(grpc::CallbackServerContext*) {
  auto stream = std::make_shared<PrefillStream>(*this, RunId(next_run_++));
  stream->Begin(stream);
  return stream.get();
}

absl::StatusOr<engine::SequenceSpec> PrefillWorker::SpecOf(const v1::PrefillRequest& request) const {
  const v1::Open& open = request.open();
  if (!request.has_open()) return absl::InvalidArgumentError("the first message of a run must open it");
  if (open.layout_id() != ToWire(core_->layout().id())) {
    return WithFacts(absl::FailedPreconditionError(
                         absl::StrCat("page layouts differ: this prefill worker's is {", core_->layout().Describe(), "}")),
                     {.code = std::string(error_code::kLayoutMismatch)});
  }
  if (open.request_id().size() > kMaxIdBytes || open.domain().size() > kMaxIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("request id and domain have at most ", kMaxIdBytes, " bytes"));
  }
  engine::SequenceSpec spec;
  if (open.cache_salt().size() > kMaxIdBytes)
    return absl::InvalidArgumentError(absl::StrCat("cache_salt has at most ", kMaxIdBytes, " bytes"));
  if (open.priority() > kMaxPriority) return absl::InvalidArgumentError(absl::StrCat("priority is 0 to ", kMaxPriority));
  spec.order = OrderOf(open.priority());
  spec.domain_key = kv::DomainKey(core_->options().cluster_secret, open.domain(), open.cache_salt());
  spec.domain = kv::DomainName(open.domain(), open.cache_salt());
  spec.tokens.assign(open.tokens().begin(), open.tokens().end());
  return spec;
}

void PrefillWorker::OnOpen(std::shared_ptr<PrefillStream> stream, v1::PrefillRequest request) {
  ++opened_;
  auto spec = SpecOf(request);
  absl::Status status = spec.ok() ? core_->engine().CheckSpec(*spec) : spec.status();
  if (status.ok() && request.open().first_page() >= core_->layout().PagesFor(spec->tokens.size()))
    status = absl::InvalidArgumentError("first_page must leave at least one page of the prompt");
  if (status.ok() && queue_.size() >= core_->options().max_queue) {
    status = WithFacts(absl::ResourceExhaustedError("the prefill worker's queue is full"),
                       {.code = std::string(error_code::kQueueFull), .retry_after_s = 1});
  }
  if (!status.ok()) {
    core_->ledger().OnRejected({.request_id = request.open().request_id(),
                                .domain = request.open().domain(),
                                .prompt_tokens = static_cast<uint64_t>(request.open().tokens_size())},
                               status);
    stream->End(ToGrpc(status));
    return;
  }
  if (request.open().recompute()) core_->engine().ForgetCached(*spec);
  const RunId id = stream->id();
  const auto beat = std::chrono::milliseconds(core_->options().heartbeat_ms);
  Running run{.stream = stream,
              .attempt = FromWire(request.attempt()),
              .spec = *std::move(spec),
              .request_id = request.open().request_id(),
              .domain = request.open().domain(),
              .sequence = {},
              .handoff = {}};
  run.handoff = std::make_unique<handoff::PrefillHandoff>(
      handoff::PrefillHandoff::Options{.pages = static_cast<uint32_t>(core_->layout().PagesFor(run.spec.tokens.size())),
                                       .first_page = request.open().first_page(),
                                       .silence_limit = beat * kSilentBeats,
                                       .progress_limit = beat * kStalledBeats},
      Clock::now());
  heartbeats_.Add(std::weak_ptr<Beating>(stream));
  queue_.emplace(run.spec.order, id);
  runs_.emplace(id, std::move(run));
  StartWaiting();
}

Ledger::Owner PrefillWorker::OwnerOf(const Running& run) {
  return {.request_id = run.request_id, .domain = run.domain, .prompt_tokens = run.spec.tokens.size()};
}

void PrefillWorker::StartWaiting() {
  while (!queue_.empty()) {
    const RunId id = queue_.begin()->second;
    const auto found = runs_.find(id);
    if (found == runs_.end() || found->second.handoff->closed()) {
      queue_.erase(queue_.begin());
      continue;
    }
    Running& run = found->second;
    auto result = core_->engine().Start(run.spec);
    if (std::holds_alternative<kv::MustWait>(result)) return;
    queue_.erase(queue_.begin());
    handoff::PrefillActions actions;
    if (auto* rejected = std::get_if<kv::Rejected>(&result)) {
      core_->ledger().OnRejected(OwnerOf(run), rejected->status);
      run.handoff->OnRefused(rejected->status, actions);
    } else {
      run.sequence = std::get<engine::Engine::Started>(result).sequence;
      by_sequence_.emplace(*run.sequence, id);
      core_->ledger().OnStarted(core_->engine(), *run.sequence, OwnerOf(run));
      core_->engine().Run(*run.sequence);
      run.handoff->OnReserved(actions);
      if (auto found = Announce(core_->engine().SealedPages(*run.sequence)); !found.empty())
        run.handoff->OnSealed(std::move(found), actions);
    }
    Act(id, actions);
  }
}

void PrefillWorker::OnPeerHeartbeat(RunId id, uint32_t covered_pages) {
  if (const auto found = runs_.find(id); found != runs_.end()) found->second.handoff->OnPeerHeartbeat(covered_pages, Clock::now());
}

void PrefillWorker::OnClosed(RunId id) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
  handoff::PrefillActions actions;
  found->second.handoff->OnStreamClosed(actions);
  Act(id, actions);
  runs_.erase(id);
}

void PrefillWorker::Act(RunId id, handoff::PrefillActions& actions) {
  Running& run = runs_.at(id);
  for (handoff::PrefillAction& action : actions) {
    v1::PrefillEvent event;
    ToWire(run.attempt, event.mutable_attempt());
    if (const auto* admitted = std::get_if<handoff::SendAdmitted>(&action)) {
      event.mutable_admitted()->set_pages(admitted->pages);
      run.stream->Send(std::move(event));
    } else if (const auto* sealed = std::get_if<handoff::SendSealed>(&action)) {
      for (const handoff::AnnouncedPage& page : sealed->pages) ToWire(page, event.mutable_sealed()->add_pages());
      run.stream->Send(std::move(event));
    } else if (const auto* end = std::get_if<handoff::EndStream>(&action)) {
      run.stream->End(ToGrpc(end->status));
    } else if (std::holds_alternative<handoff::Unpin>(action)) {
      by_sequence_.erase(*run.sequence);
      core_->engine().Release(*run.sequence);
      core_->ledger().OnEnded(*run.sequence, tenure::Outcome::kHandedOver, 0, 0);
    }
  }
}

std::vector<handoff::AnnouncedPage> PrefillWorker::Announce(const std::vector<engine::SealedEvent>& sealed) const {
  std::vector<handoff::AnnouncedPage> pages;
  for (const engine::SealedEvent& page : sealed) {
    pages.push_back({.ordinal = page.ordinal,
                     .source = {.region = core_->boot_id(),
                                .offset = core_->pool().PayloadOffset(page.page),
                                .generation = page.generation.value()},
                     .seal = page.seal});
  }
  return pages;
}

void PrefillWorker::OnEvents(const std::vector<engine::Event>& events) {
  std::map<SequenceId, std::vector<engine::SealedEvent>> sealed;
  for (const engine::Event& event : events) {
    if (const auto* page = std::get_if<engine::SealedEvent>(&event)) {
      sealed[page->sequence].push_back(*page);
    } else if (const auto* cached = std::get_if<engine::CachedPageWrongEvent>(&event)) {
      core_->ledger().OnWrong(SequenceId(), {&cached->wrong, 1}, tenure::kActionQuarantined,
                              "a cached page, found by the scrubber or when it was used again");
    } else if (const auto* failed = std::get_if<engine::FailedEvent>(&event)) {
      // Its stream may have been closed since it failed: then its pages are gone and nobody is to be told.
      const auto found = by_sequence_.find(failed->sequence);
      if (found == by_sequence_.end()) {
        core_->ledger().OnWrong(failed->sequence, failed->wrong, tenure::kActionQuarantined, "found after its stream was closed");
        continue;
      }
      const RunId id = found->second;
      by_sequence_.erase(found);
      log::error("request {}: {}", runs_.at(id).request_id, std::string(failed->status.message()));
      core_->ledger().OnWrong(failed->sequence, failed->wrong, tenure::kActionEnded, "found by a step or the scrubber");
      core_->ledger().OnEnded(failed->sequence, failed->wrong.empty() ? tenure::Outcome::kFailed : tenure::Outcome::kIntegrity, 0,
                              0);
      handoff::PrefillActions actions;
      runs_.at(id).handoff->OnComputeFailed(failed->status, actions);
      Act(id, actions);
    }
  }
  for (auto& [sequence, pages] : sealed) {
    const auto found = by_sequence_.find(sequence);
    if (found == by_sequence_.end()) continue;
    handoff::PrefillActions actions;
    runs_.at(found->second).handoff->OnSealed(Announce(pages), actions);
    Act(found->second, actions);
  }
}

void PrefillWorker::OnTurn(Clock::time_point now) {
  steps_.store(core_->engine().counters().steps, std::memory_order_relaxed);
  StartWaiting();
  for (auto& [id, run] : runs_) {
    handoff::PrefillActions actions;
    run.handoff->OnTick(now, actions);
    Act(id, actions);
  }
  if (now - published_ < kPublishEvery && core_->engine().HasWork()) return;
  published_ = now;
  Publish();
}

void PrefillWorker::Publish() {
  using v1::Metric;
  core_->Publish(
      static_cast<uint32_t>(queue_.size()),
      {MakeMetric("prefill_streams", Metric::GAUGE, static_cast<double>(runs_.size()), "Open prefill streams"),
       MakeMetric("prefill_streams_opened_total", Metric::COUNTER, static_cast<double>(opened_), "Prefill streams ever opened")});
}

}  // namespace cofferdam::worker
