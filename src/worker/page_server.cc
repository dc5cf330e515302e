#include "worker/page_server.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
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

constexpr int kSilentBeats = 3;    // a peer that misses so many is silent
constexpr int kStalledBeats = 60;  // pages that are held for so long without being read are let go

}  // namespace

PageServer::PageServer(Options options)
    : core_(options.core),
      loop_(options.loop),
      heartbeats_(options.heartbeats),
      fetcher_(options.fetcher),
      computes_(options.computes),
      pull_from_(std::move(options.pull_from)) {}

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Create(Options options) {
  auto server = std::unique_ptr<PageServer>(new PageServer(std::move(options)));
  WorkerCore& core = server->core_;
  auto source = fabric::Serve(core.options().fabric_address, core.region().fd(),
                              {.region = core.boot_id(), .bytes = core.region().bytes().size(), .layout_id = core.layout().id()});
  if (!source.ok()) return source.status();
  server->source_ = *std::move(source);
  return server;
}

grpc::ServerUnaryReactor* PageServer::Info(grpc::CallbackServerContext* context, const v1::InfoRequest*, v1::WorkerInfo* info) {
  *info = core_.Info();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* PageServer::Find(grpc::CallbackServerContext* context, const v1::FindRequest* request, v1::Found* found) {
  std::vector<kv::Digest128> identities;
  for (const std::string& wire : request->identities()) {
    auto identity = DigestFromWire(wire);
    // What is no identity names no page, and nobody holds more than a pool.
    if (!identity.ok() || identities.size() >= core_.pool_pages()) break;
    identities.push_back(*identity);
  }
  found->set_pages(static_cast<uint32_t>(core_.cached_pages().CountPrefix(identities)));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerBidiReactor<v1::PrefillRequest, v1::PrefillEvent>* PageServer::Run(grpc::CallbackServerContext*) {
  auto stream = std::make_shared<PrefillStream>(*this, RunId(next_run_++));
  stream->Begin(stream);
  return stream.get();
}

absl::StatusOr<engine::SequenceSpec> PageServer::SpecOf(const v1::PrefillRequest& request) const {
  const v1::Open& open = request.open();
  if (!request.has_open()) return absl::InvalidArgumentError("the first message of a run must open it");
  if (open.layout_id() != ToWire(core_.layout().id())) {
    return WithFacts(absl::FailedPreconditionError(absl::StrCat("page layouts differ: this ", core_.options().role,
                                                                " worker's is {", core_.layout().Describe(), "}")),
                     {.code = std::string(error_code::kLayoutMismatch)});
  }
  auto spec = FromWire(open);
  if (!spec.ok()) return spec.status();
  spec->domain_key = kv::DomainKey(core_.options().cluster_secret, open.domain(), open.cache_salt());
  spec->domain = kv::DomainName(open.domain(), open.cache_salt());
  return spec;
}

absl::Status PageServer::Judge(const v1::Open& open, const engine::SequenceSpec& spec) const {
  if (!open.cached_only() && !computes_)
    return absl::FailedPreconditionError("this worker computes no prompts for others; it serves what its prefix cache holds");
  if (absl::Status status = core_.engine().CheckSpec(spec); !status.ok()) return status;
  if (open.first_page() >= core_.layout().PagesFor(spec.tokens.size()))
    return absl::InvalidArgumentError("first_page must leave at least one page of the prompt");
  // A run that is served from the cache waits for nothing, but it pins pages: so many at once, too.
  if ((open.cached_only() ? runs_.size() : queue_.size()) < core_.options().max_queue) return absl::OkStatus();
  return WithFacts(absl::ResourceExhaustedError(absl::StrCat("the ", core_.options().role, " worker's queue is full")),
                   {.code = std::string(error_code::kQueueFull), .retry_after_s = 1});
}

void PageServer::OnOpen(std::shared_ptr<PrefillStream> stream, v1::PrefillRequest request) {
  ++opened_;
  const v1::Open& open = request.open();
  auto spec = SpecOf(request);
  if (absl::Status status = spec.ok() ? Judge(open, *spec) : spec.status(); !status.ok()) {
    core_.ledger().OnRejected(
        {.request_id = open.request_id(), .domain = open.domain(), .prompt_tokens = static_cast<uint64_t>(open.tokens_size())},
        status);
    stream->End(ToGrpc(status));
    return;
  }
  if (open.recompute()) core_.engine().ForgetCached(*spec);
  const RunId id = stream->id();
  const auto beat = std::chrono::milliseconds(core_.options().heartbeat_ms);
  Running run{.stream = stream,
              .attempt = FromWire(request.attempt()),
              .spec = *std::move(spec),
              .request_id = open.request_id(),
              .domain = open.domain(),
              .cache_salt = open.cache_salt(),
              .first_page = open.first_page(),
              .cached_only = open.cached_only(),
              .sequence = {},
              .handoff = {},
              .pull = {},
              .may_pull = !open.cached_only() && !open.recompute()};
  run.handoff = std::make_unique<handoff::PrefillHandoff>(
      handoff::PrefillHandoff::Options{.pages = static_cast<uint32_t>(core_.layout().PagesFor(run.spec.tokens.size())),
                                       .first_page = open.first_page(),
                                       .silence_limit = beat * kSilentBeats,
                                       .progress_limit = beat * kStalledBeats},
      Clock::now());
  heartbeats_.Add(std::weak_ptr<Beating>(stream));
  const auto [entry, _] = runs_.emplace(id, std::move(run));
  if (entry->second.cached_only) return ServeCached(id);
  queue_.emplace(entry->second.spec.order, id);
  StartWaiting();
}

Ledger::Owner PageServer::OwnerOf(const Running& run) {
  return {.request_id = run.request_id, .domain = run.domain, .prompt_tokens = run.spec.tokens.size()};
}

void PageServer::ServeCached(RunId id) {
  Running& run = runs_.at(id);
  const std::optional<SequenceId> sequence = core_.engine().HoldCached(run.spec);
  handoff::PrefillActions actions;
  if (!sequence.has_value()) {
    run.handoff->OnRefused(absl::NotFoundError("the prefix cache does not hold these pages any more"), actions);
    return Act(id, actions);
  }
  ++served_cached_;
  Own(id, *sequence);
  run.handoff->OnReserved(actions);
  run.handoff->OnSealed(Announce(core_.engine().SealedPages(*sequence)), actions);
  Act(id, actions);
}

void PageServer::Own(RunId id, SequenceId sequence) {
  Running& run = runs_.at(id);
  run.sequence = sequence;
  by_sequence_.emplace(sequence, id);
  core_.ledger().OnStarted(core_.engine(), sequence, OwnerOf(run));
}

void PageServer::StartWaiting() {
  while (!queue_.empty()) {
    const RunId id = queue_.begin()->second;
    const auto found = runs_.find(id);
    if (found == runs_.end() || found->second.handoff->closed()) {
      queue_.erase(queue_.begin());
      continue;
    }
    Running& run = found->second;
    auto result = core_.engine().Start(run.spec);
    if (std::holds_alternative<kv::MustWait>(result)) return;
    queue_.erase(queue_.begin());
    if (auto* rejected = std::get_if<kv::Rejected>(&result)) {
      core_.ledger().OnRejected(OwnerOf(run), rejected->status);
      handoff::PrefillActions actions;
      run.handoff->OnRefused(rejected->status, actions);
      Act(id, actions);
      continue;
    }
    Own(id, std::get<engine::Engine::Started>(result).sequence);
    if (!Pull(id)) Launch(id);
  }
}

void PageServer::Launch(RunId id) {
  Running& run = runs_.at(id);
  core_.engine().Run(*run.sequence);
  handoff::PrefillActions actions;
  run.handoff->OnReserved(actions);
  if (auto found = Announce(core_.engine().SealedPages(*run.sequence)); !found.empty())
    run.handoff->OnSealed(std::move(found), actions);
  Act(id, actions);
}

bool PageServer::Pull(RunId id) {
  Running& run = runs_.at(id);
  const uint32_t cached = core_.engine().CachedPages(*run.sequence);
  if (!std::exchange(run.may_pull, false) || run.first_page <= cached) return false;
  // What comes before the first page that the opener wants, it has.
  const auto peer = std::ranges::find_if(pull_from_, [&](const std::shared_ptr<PrefillPeer>& candidate) {
    const PrefillPeer::State state = candidate->state();
    return state.ready && state.info.boot_id() == run.attempt.boot_id;
  });
  if (peer == pull_from_.end()) return false;
  const auto end = run.spec.tokens.begin() + static_cast<ptrdiff_t>(uint64_t{run.first_page} * core_.layout().page_tokens());
  run.pull = fetcher_.Start({.peer = *peer,
                             .sequence = *run.sequence,
                             .domain_key = run.spec.domain_key,
                             .request_id = run.request_id,
                             .domain = run.domain,
                             .cache_salt = run.cache_salt,
                             .tokens = {run.spec.tokens.begin(), end},
                             .first_page = cached,
                             .pull = true},
                            {.on_covered =
                                 [this, id](uint32_t) {
                                   runs_.at(id).pull.reset();
                                   Launch(id);
                                 },
                             .on_failed = [this, id](const FetchFailure& failure) { OnPullFailed(id, failure); },
                             .on_quiet = [this, id] { OnPullQuiet(id); }});
  return true;
}

void PageServer::OnPullFailed(RunId id, const FetchFailure& failure) {
  Running& run = runs_.at(id);
  log::info("request {}: pulling pages failed: {};{}", run.request_id, std::string(failure.status.message()),
            run.handoff->closed() ? "" : " they are computed here");
  if (!failure.sequence_gone) return;
  core_.ledger().OnEnded(*run.sequence, tenure::Outcome::kIntegrity, 0, failure.adopted_pages);
  by_sequence_.erase(*run.sequence);
  run.sequence.reset();
}

void PageServer::OnPullQuiet(RunId id) {
  Running& run = runs_.at(id);
  run.pull.reset();
  if (run.sequence.has_value()) {
    by_sequence_.erase(*run.sequence);
    core_.engine().Release(*run.sequence);
    core_.ledger().OnEnded(*run.sequence, tenure::Outcome::kFailed, 0, 0);
    run.sequence.reset();
  }
  if (run.handoff->closed()) {
    runs_.erase(id);
    return;
  }
  // Where it stood, and it computes all now.
  queue_.emplace(run.spec.order, id);
}

void PageServer::OnPeerHeartbeat(RunId id, uint32_t covered_pages) {
  if (const auto found = runs_.find(id); found != runs_.end()) found->second.handoff->OnPeerHeartbeat(covered_pages, Clock::now());
}

void PageServer::OnClosed(RunId id) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
  handoff::PrefillActions actions;
  found->second.handoff->OnStreamClosed(actions);
  Act(id, actions);
  if (const auto pull = found->second.pull) return fetcher_.Cancel(*pull);  // forgets the run once its reads have ended
  runs_.erase(id);
}

void PageServer::Act(RunId id, handoff::PrefillActions& actions) {
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
      core_.engine().Release(*run.sequence);
      core_.ledger().OnEnded(*run.sequence, tenure::Outcome::kHandedOver, 0, 0);
    }
  }
}

std::vector<handoff::AnnouncedPage> PageServer::Announce(const std::vector<engine::SealedEvent>& sealed) const {
  std::vector<handoff::AnnouncedPage> pages;
  for (const engine::SealedEvent& page : sealed) {
    pages.push_back({.ordinal = page.ordinal,
                     .source = {.region = core_.boot_id(),
                                .offset = core_.pool().PayloadOffset(page.page),
                                .generation = page.generation.value()},
                     .seal = page.seal});
  }
  return pages;
}

void PageServer::OnFailed(const engine::FailedEvent& failed) {
  // Its stream may have been closed since it failed: then its pages are gone and nobody is to be told.
  const auto found = by_sequence_.find(failed.sequence);
  if (found == by_sequence_.end()) {
    core_.ledger().OnWrong(failed.sequence, failed.wrong, tenure::kActionQuarantined, "found after its stream was closed");
    return;
  }
  const RunId id = found->second;
  by_sequence_.erase(found);
  log::error("request {}: {}", runs_.at(id).request_id, std::string(failed.status.message()));
  core_.ledger().OnWrong(failed.sequence, failed.wrong, tenure::kActionEnded, "found by a step or the scrubber");
  core_.ledger().OnEnded(failed.sequence, failed.wrong.empty() ? tenure::Outcome::kFailed : tenure::Outcome::kIntegrity, 0, 0);
  handoff::PrefillActions actions;
  runs_.at(id).handoff->OnComputeFailed(failed.status, actions);
  Act(id, actions);
}

void PageServer::OnEvents(const std::vector<engine::Event>& events) {
  std::map<SequenceId, std::vector<engine::SealedEvent>> sealed;
  for (const engine::Event& event : events) {
    if (const auto* page = std::get_if<engine::SealedEvent>(&event)) {
      sealed[page->sequence].push_back(*page);
    } else if (const auto* failed = std::get_if<engine::FailedEvent>(&event)) {
      OnFailed(*failed);
    } else if (const auto* copied = std::get_if<engine::CopiedEvent>(&event)) {
      core_.ledger().OnTook(copied->sequence, copied->page, copied->generation);
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

void PageServer::OnTurn(Clock::time_point now) {
  steps_.store(core_.engine().counters().steps, std::memory_order_relaxed);
  StartWaiting();
  for (auto& [id, run] : runs_) {
    handoff::PrefillActions actions;
    run.handoff->OnTick(now, actions);
    Act(id, actions);
  }
}

void PageServer::AddMetrics(std::vector<v1::Metric>& metrics) const {
  using v1::Metric;
  metrics.push_back(MakeMetric("prefill_streams", Metric::GAUGE, static_cast<double>(runs_.size()), "Open prefill streams"));
  metrics.push_back(
      MakeMetric("prefill_streams_opened_total", Metric::COUNTER, static_cast<double>(opened_), "Prefill streams ever opened"));
  metrics.push_back(MakeMetric("cached_streams_total", Metric::COUNTER, static_cast<double>(served_cached_),
                               "Of those, how many were served from the prefix cache, for a pull"));
}

}  // namespace cofferdam::worker
