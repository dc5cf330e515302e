#include "worker/page_fetcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "worker/wire.h"

namespace cofferdam::worker {
namespace {

constexpr int kSilentBeats = 3;    // a peer that misses so many is silent
constexpr int kStalledBeats = 60;  // a peer that talks and does nothing for so long has failed

}  // namespace

PageFetcher::PageFetcher(WorkerCore& core, EngineLoop& loop, Heartbeats& heartbeats, size_t peers)
    : core_(core),
      loop_(loop),
      heartbeats_(heartbeats),
      // The cap leaves room for one more peer than a single hung one takes.
      all_peers_(core.options().transfer_window_bytes * std::clamp<size_t>(peers, 1, 2)) {}

std::shared_ptr<PrefillPeer> PageFetcher::PeerAt(const std::string& address) {
  for (const std::shared_ptr<PrefillPeer>& peer : peers_) {
    if (peer->address() == address) return peer;
  }
  peers_.push_back(std::make_shared<PrefillPeer>(address, core_.layout(), core_.options().transfer_window_bytes, &all_peers_));
  return peers_.back();
}

void PageFetcher::Stop() {
  // Streams and reads end first, while the loop still handles their ends: both name this object.
  loop_.Post([this] {
    for (auto& [id, fetch] : fetches_) fetch.call->Close();
  });
  {
    MutexLock lock(calls_mutex_);
    while (live_calls_ > 0) calls_changed_.Wait(calls_mutex_);
  }
  for (const std::shared_ptr<PrefillPeer>& peer : peers_) {
    if (const auto reader = peer->state().reader; reader != nullptr) reader->Close();
  }
}

void PageFetcher::CountCalls(int change) {
  MutexLock lock(calls_mutex_);
  live_calls_ += change;
  calls_changed_.NotifyAll();
}

FetchId PageFetcher::Start(FetchSpec spec, FetchCallbacks callbacks) {
  const FetchId id(next_fetch_++);
  Fetch& fetch = fetches_[id];
  fetch.spec = std::move(spec);
  fetch.callbacks = std::move(callbacks);
  const PrefillPeer::State peer = fetch.spec.peer->state();
  fetch.reader = peer.reader;
  fetch.origin = peer.info.boot_id();
  fetch.attempt = {.boot_id = core_.boot_id(), .counter = id.value()};
  const auto beat = std::chrono::milliseconds(core_.options().heartbeat_ms);
  fetch.handoff = std::make_unique<handoff::DecodeHandoff>(
      handoff::DecodeHandoff::Options{.attempt = fetch.attempt,
                                      .layout_id = core_.layout().id(),
                                      .identities = kv::PageIdentities(fetch.spec.domain_key, core_.layout(), fetch.spec.tokens),
                                      .covered_tokens = fetch.spec.tokens.size(),
                                      .first_page = fetch.spec.first_page,
                                      .page_tokens = core_.layout().page_tokens(),
                                      .page_bytes = core_.layout().payload_bytes(),
                                      .silence_limit = beat * kSilentBeats,
                                      .stall_limit = beat * kStalledBeats},
      fetch.spec.peer->window(), Clock::now());
  ++CountersOf(fetch).started;
  OpenStream(id, fetch);
  return id;
}

void PageFetcher::OpenStream(FetchId id, Fetch& fetch) {
  v1::PrefillRequest request;
  ToWire(fetch.attempt, request.mutable_attempt());
  v1::Open& open = *request.mutable_open();
  open.set_request_id(fetch.spec.request_id);
  open.set_domain(fetch.spec.domain);
  open.set_layout_id(ToWire(core_.layout().id()));
  open.mutable_tokens()->Assign(fetch.spec.tokens.begin(), fetch.spec.tokens.end());
  open.set_first_page(fetch.spec.first_page);
  open.set_cache_salt(fetch.spec.cache_salt);
  open.set_priority(fetch.spec.priority);
  open.set_recompute(fetch.spec.recompute);
  open.set_cached_only(fetch.spec.pull);
  CountCalls(+1);
  fetch.call = PrefillCall::Start(
      fetch.spec.peer->stub(), std::move(request),
      {.on_event =
           [this, id](v1::PrefillEvent event) { loop_.Post([this, id, event = std::move(event)] { OnPrefillEvent(id, event); }); },
       .on_ended =
           [this, id](absl::Status status) {
             loop_.Post([this, id, status] { OnPrefillEnded(id, status); });
             CountCalls(-1);
           }});
  heartbeats_.Add(std::weak_ptr<Beating>(fetch.call));
}

PageFetcher::Fetch* PageFetcher::Find(FetchId id) {
  const auto found = fetches_.find(id);
  return found == fetches_.end() ? nullptr : &found->second;
}

bool PageFetcher::running(FetchId id) const {
  const auto found = fetches_.find(id);
  return found != fetches_.end() && found->second.handoff->running();
}

void PageFetcher::Cancel(FetchId id) {
  Fetch* fetch = Find(id);
  if (fetch == nullptr) return;
  handoff::DecodeActions actions;
  fetch->handoff->OnCancel(actions);
  Act(id, std::move(actions));
}

void PageFetcher::OnPrefillEvent(FetchId id, const v1::PrefillEvent& event) {
  Fetch* fetch = Find(id);
  if (fetch == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  const uint64_t stale_before = fetch->handoff->stale_messages();
  handoff::DecodeActions actions;
  Deliver(event, Clock::now(), *fetch->handoff, actions);
  counters_.stale_messages += fetch->handoff->stale_messages() - stale_before;
  Act(id, std::move(actions));
}

void PageFetcher::OnPrefillEnded(FetchId id, const absl::Status& status) {
  Fetch* fetch = Find(id);
  if (fetch == nullptr) return;
  handoff::DecodeActions actions;
  fetch->handoff->OnStreamEnded(status, actions);
  Act(id, std::move(actions));
}

void PageFetcher::IssueRead(FetchId id, Fetch& fetch, const handoff::IssueRead& read) {
  const auto view = core_.engine().PageAt(fetch.spec.sequence, read.page.ordinal);
  core_.engine().HoldForTransfer(fetch.spec.sequence, read.page.ordinal);
  ++counters_.reads;
  // The completion verifies on the fabric's thread, on the bytes that arrived, while the transfer count is held.
  fetch.reader->Read({.region = read.page.source.region, .source_offset = read.page.source.offset, .destination = view.payload},
                     [this, id, read, view, begun = Clock::now()](absl::Status status) {
                       const Clock::time_point arrived = Clock::now();
                       kv::Seal seal = read.page.seal;
#ifdef COFFERDAM_FAULTS
                       const auto fault = status.ok() ? core_.injection().Spoil(view.payload, seal) : std::nullopt;
#endif
                       absl::StatusOr<kv::Arrival> arrival =
                           status.ok() ? absl::StatusOr<kv::Arrival>(kv::VerifyArrived(
                                             core_.layout(), view, seal, read.expected_identity, read.expected_tokens))
                                       : std::move(status);
                       ReadResult result{.ordinal = read.page.ordinal,
                                         .at = view,
                                         .arrival = std::move(arrival),
                                         .transfer = arrived - begun,
                                         .verification = Clock::now() - arrived};
#ifdef COFFERDAM_FAULTS
                       result.fault = fault;
#endif
                       loop_.Post([this, id, result = std::move(result)] { OnRead(id, result); });
                     });
}

void PageFetcher::OnRead(FetchId id, const ReadResult& read) {
  core_.engine().EndTransfer(read.at.page, read.at.generation);
  Fetch* fetch = Find(id);
  CD_CHECK(fetch != nullptr, "I4: a handoff outlives its own reads");
  handoff::DecodeActions actions;
  if (!read.arrival.ok()) {
    ++counters_.reads_failed;
    fetch->handoff->OnReadFailed(read.ordinal, read.arrival.status(), actions);
  } else {
    counters_.read_bytes += core_.layout().payload_bytes();
    JudgeSeal(*fetch, read);
    transfer_seconds_.Observe(std::chrono::duration<double>(read.transfer).count());
    verification_seconds_.Observe(std::chrono::duration<double>(read.verification).count());
    fetch->handoff->OnReadDone(read.ordinal, *read.arrival, actions);
  }
  Act(id, std::move(actions));
  OfferWindow();
}

void PageFetcher::JudgeSeal(const Fetch& fetch, const ReadResult& read) {
#ifdef COFFERDAM_FAULTS
  if (read.fault.has_value()) core_.injection().OnArrivalJudged(*read.fault, fetch.handoff->running());
#endif
  // Who has given a handoff up has given up the source's pin with it: what such a read finds is nobody's fault, and nobody's page.
  if (!fetch.handoff->running()) {
    ++counters_.late_reads;
    return;
  }
  kv::CheckCounts::Count& seals = core_.checks()[kv::CheckKind::kSeal];
  ++seals.made;
  const auto* fault = std::get_if<kv::SealFault>(&*read.arrival);
  if (fault == nullptr) return;
  ++seals.failed;
  RecordOnTheWay(fetch, kv::CheckKind::kSeal, read.at.page, read.at.generation,
                 absl::StrCat(std::string(ToString(*fault)), ", from worker ", fetch.spec.peer->address()));
}

void PageFetcher::RecordOnTheWay(const Fetch& fetch, kv::CheckKind kind, PageId page, Generation generation,
                                 const std::string& detail) {
  const engine::WrongPage wrong{.kind = kind, .page = page, .expected = generation, .found = generation, .in_memory = generation};
  core_.ledger().OnWrong(fetch.sequence_gone ? SequenceId() : fetch.spec.sequence, {&wrong, 1}, tenure::kActionRetired, detail);
}

void PageFetcher::OfferWindow() {
  // Oldest first: one that was refused bytes is asked again before younger ones take them.
  ActOnAll([](handoff::DecodeHandoff& handoff, handoff::DecodeActions& actions) { handoff.OnWindowFree(actions); });
}

void PageFetcher::ActOnAll(const std::function<void(handoff::DecodeHandoff&, handoff::DecodeActions&)>& event) {
  // Acting may end any of them, and owners may start others.
  std::vector<FetchId> ids;
  for (const auto& [id, fetch] : fetches_) ids.push_back(id);
  for (const FetchId id : ids) {
    Fetch* fetch = Find(id);
    if (fetch == nullptr) continue;
    handoff::DecodeActions actions;
    event(*fetch->handoff, actions);
    Act(id, std::move(actions));
  }
}

void PageFetcher::Act(FetchId id, handoff::DecodeActions actions) {
  for (const handoff::DecodeAction& action : actions) {
    Fetch* fetch = Find(id);
    if (fetch == nullptr) return;
    if (const auto* read = std::get_if<handoff::IssueRead>(&action)) {
      IssueRead(id, *fetch, *read);
    } else if (const auto* adopt = std::get_if<handoff::Adopt>(&action)) {
      if (!Adopt(id, *adopt)) return;  // what stood behind this action was made for a handoff that works
    } else if (std::holds_alternative<handoff::CloseStream>(action)) {
      fetch->call->Close();
    } else if (std::holds_alternative<handoff::ClosePeer>(action)) {
      log::warn("worker {} is silent or stalled; its connection is closed", fetch->spec.peer->address());
      fetch->reader->Close();
    } else if (std::holds_alternative<handoff::Complete>(action)) {
      return OnComplete(id);
    } else if (const auto* fail = std::get_if<handoff::Fail>(&action)) {
      ++CountersOf(*fetch).failed;
      fetch->callbacks.on_failed({.status = fail->status,
                                  .retry_elsewhere = fail->retry_elsewhere,
                                  .sequence_gone = fetch->sequence_gone,
                                  .adopted_pages = fetch->handoff->adopted_pages()});
    } else if (std::holds_alternative<handoff::ReleasePages>(action)) {
      const auto on_quiet = std::move(fetch->callbacks.on_quiet);
      fetches_.erase(id);
      return on_quiet();
    }
  }
}

bool PageFetcher::Adopt(FetchId id, const handoff::Adopt& adopt) {
  Fetch& fetch = fetches_.at(id);
  engine::WrongPage wrong;
  const absl::Status status = core_.engine().Adopt(fetch.spec.sequence, adopt.ordinal, adopt.page, fetch.origin, &wrong);
  if (status.ok()) {
    fetch.call->SetCovered(fetch.handoff->covered_pages());
    return true;
  }
  // The engine has let the sequence go and has quarantined the page.
  log::error("request {}: {}", fetch.spec.request_id, std::string(status.message()));
  core_.ledger().OnWrong(fetch.spec.sequence, {&wrong, 1}, tenure::kActionEnded, "found at adoption");
  fetch.sequence_gone = true;
  handoff::DecodeActions then;
  fetch.handoff->OnAdoptFailed(status, then);
  Act(id, std::move(then));
  return false;
}

void PageFetcher::OnComplete(FetchId id) {
  Fetch& fetch = fetches_.at(id);
  kv::CheckKind check = kv::CheckKind::kContent;
  const absl::Status status = core_.engine().CheckAdopted(fetch.spec.sequence, &check);
  Counters::Kind& counters = CountersOf(fetch);
  const uint32_t pages = fetch.handoff->adopted_pages();
  if (!status.ok()) {
    ++counters.failed;
    OnWrongPages(fetch, check, status);
  } else {
    ++counters.completed;
    counters.pages += pages;
  }
  const FetchCallbacks callbacks = std::move(fetch.callbacks);
  fetches_.erase(id);
  if (status.ok()) return callbacks.on_covered(pages);
  callbacks.on_failed({.status = status, .retry_elsewhere = true, .adopted_pages = pages});
  callbacks.on_quiet();
}

void PageFetcher::OnWrongPages(const Fetch& fetch, kv::CheckKind check, const absl::Status& status) {
  const std::string& address = fetch.spec.peer->address();
  log::error("request {}, worker {}: {}", fetch.spec.request_id, address, std::string(status.message()));
  // Which one it is was not asked; those before came from elsewhere.
  const auto first = core_.engine().PageAt(fetch.spec.sequence, fetch.spec.first_page);
  RecordOnTheWay(fetch, check, first.page, first.generation, absl::StrCat(std::string(status.message()), "; from ", address));
  // Whatever else that worker sent may be as wrong.
  if (const uint64_t dropped = core_.engine().DropOrigin(fetch.origin); dropped > 0)
    log::error("{} cached pages that worker {} sent are not used again", dropped, address);
}

void PageFetcher::OnTurn(Clock::time_point now) {
  ActOnAll([now](handoff::DecodeHandoff& handoff, handoff::DecodeActions& actions) { handoff.OnTick(now, actions); });
}

void PageFetcher::AddMetrics(std::vector<v1::Metric>& metrics) const {
  using v1::Metric;
  auto add = [&](const char* name, Metric::Kind kind, uint64_t value, const char* help) {
    metrics.push_back(MakeMetric(name, kind, static_cast<double>(value), help));
  };
  add("pulls_total", Metric::COUNTER, counters_.pulls.started, "Fetches of cached pages of other workers");
  add("pulls_completed_total", Metric::COUNTER, counters_.pulls.completed, "Of those, how many brought all pages");
  add("pulls_failed_total", Metric::COUNTER, counters_.pulls.failed, "Of those, how many failed or were cancelled");
  add("pulled_pages_total", Metric::COUNTER, counters_.pulls.pages, "Pages that they brought");
  add("transfer_reads_total", Metric::COUNTER, counters_.reads, "Pages read from peers");
  add("transfer_read_failures_total", Metric::COUNTER, counters_.reads_failed, "Reads that failed");
  add("transfer_late_reads_total", Metric::COUNTER, counters_.late_reads,
      "Reads that ended after their handoff had; nothing of them is used");
  add("transfer_read_bytes_total", Metric::COUNTER, counters_.read_bytes, "Bytes read from peers");
  add("stale_messages_total", Metric::COUNTER, counters_.stale_messages, "Messages of another attempt, dropped");
  size_t in_flight = 0, most = 0;
  for (const std::shared_ptr<PrefillPeer>& peer : peers_) {
    in_flight += peer->window().in_flight_bytes();
    most = std::max(most, peer->window().most_bytes());
  }
  add("transfer_in_flight_bytes", Metric::GAUGE, in_flight, "Bytes of reads in flight");
  add("transfer_in_flight_bytes_max", Metric::GAUGE, most, "Most bytes of reads ever in flight, of any peer");
  add("transfer_window_bytes", Metric::GAUGE, core_.options().transfer_window_bytes, "The limit of bytes in flight, per peer");
  metrics.push_back(MakeHistogram("transfer_seconds", transfer_seconds_, "From asking for a page to its arrival"));
  metrics.push_back(MakeHistogram("verification_seconds", verification_seconds_, "Verifying a page that arrived"));
}

}  // namespace cofferdam::worker
