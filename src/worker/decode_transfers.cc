// The decode server's handoffs: drives the sans-IO machine with gRPC streams and fabric reads.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error.h"
#include "base/faults.h"
#include "base/log.h"
#include "worker/decode_worker.h"
#include "worker/generate_stream.h"
#include "worker/wire.h"

namespace cofferdam::worker {
namespace {

constexpr int kMaxHandoffs = 3;    // of one request: the first and two retries
constexpr int kSilentBeats = 3;    // a peer that misses so many is silent
constexpr int kStalledBeats = 60;  // a peer that talks and does nothing for so long has failed

}  // namespace

std::shared_ptr<PrefillPeer> DecodeWorker::ChoosePeer(const Request& request) {
  const uint64_t need = request.spec.tokens.size() + request.spec.max_output;
  std::shared_ptr<PrefillPeer> same;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const size_t index = (next_peer_ + i) % peers_.size();
    const PrefillPeer::State state = peers_[index]->state();
    if (!state.ready || (state.info.context_tokens() < need && !FaultIsOn(Fault::kPeerNotJudged))) continue;
    if (peers_[index] == request.peer) {
      same = peers_[index];
      continue;
    }
    next_peer_ = index + 1;
    return peers_[index];
  }
  return same;
}

void DecodeWorker::OpenHandoff(Request& request) {
  request.peer = ChoosePeer(request);
  if (request.accepted && (request.peer == nullptr || request.handoffs >= kMaxHandoffs)) return ComputeHere(request);
  if (request.peer == nullptr) {
    return Finish(request, WithFacts(absl::UnavailableError("no prefill worker is ready; try again later"),
                                     {.code = std::string(error_code::kNoWorker), .retry_after_s = 1}));
  }
  const std::span<const TokenId> covered(request.spec.tokens.data(), request.spec.tokens.size() - 1);
  const auto beat = std::chrono::milliseconds(core_->options().heartbeat_ms);
  const uint32_t first_page = core_->engine().CachedPages(*request.sequence);
  const PrefillPeer::State peer = request.peer->state();
  request.reader = peer.reader;
  request.origin = peer.info.boot_id();
  request.handoff_attempt = {.boot_id = core_->boot_id(), .counter = next_handoff_++};
  request.handoff = std::make_unique<handoff::DecodeHandoff>(
      handoff::DecodeHandoff::Options{.attempt = request.handoff_attempt,
                                      .layout_id = core_->layout().id(),
                                      .identities = kv::PageIdentities(request.spec.domain_key, core_->layout(), covered),
                                      .covered_tokens = covered.size(),
                                      .first_page = first_page,
                                      .page_tokens = core_->layout().page_tokens(),
                                      .page_bytes = core_->layout().payload_bytes(),
                                      .silence_limit = beat * kSilentBeats,
                                      .stall_limit = beat * kStalledBeats},
      request.peer->window(), Clock::now());
  request.retry = false;
  ++request.handoffs;
  ++counters_.handoffs;
  transferring_.insert(request.id);

  v1::PrefillRequest open;
  ToWire(request.handoff_attempt, open.mutable_attempt());
  open.mutable_open()->set_request_id(request.request_id);
  open.mutable_open()->set_domain(request.domain);
  open.mutable_open()->set_layout_id(ToWire(core_->layout().id()));
  open.mutable_open()->mutable_tokens()->Assign(covered.begin(), covered.end());
  open.mutable_open()->set_first_page(first_page);
  open.mutable_open()->set_cache_salt(request.cache_salt);
  open.mutable_open()->set_priority(request.priority);
  open.mutable_open()->set_recompute(request.recompute);
  const RequestId id = request.id;
  const uint64_t serial = request.handoff_attempt.counter;
  CountCalls(+1);
  request.call =
      PrefillCall::Start(request.peer->stub(), std::move(open),
                         {.on_event =
                              [this, id, serial](v1::PrefillEvent event) {
                                loop_.Post([this, id, serial, event = std::move(event)] { OnPrefillEvent(id, serial, event); });
                              },
                          .on_ended =
                              [this, id, serial](absl::Status status) {
                                loop_.Post([this, id, serial, status] { OnPrefillEnded(id, serial, status); });
                                CountCalls(-1);
                              }});
  heartbeats_.Add(std::weak_ptr<Beating>(request.call));
}

DecodeWorker::Request* DecodeWorker::FindHandoff(RequestId id, uint64_t serial) {
  Request* request = Find(id);
  return request != nullptr && request->handoff != nullptr && request->handoff_attempt.counter == serial ? request : nullptr;
}

void DecodeWorker::OnPrefillEvent(RequestId id, uint64_t serial, const v1::PrefillEvent& event) {
  Request* request = FindHandoff(id, serial);
  if (request == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  const handoff::AttemptId attempt = FromWire(event.attempt());
  const Clock::time_point now = Clock::now();
  const uint64_t stale_before = request->handoff->stale_messages();
  handoff::DecodeActions actions;
  if (event.has_admitted()) {
    request->handoff->OnAdmitted(attempt, now, actions);
  } else if (event.has_heartbeat()) {
    request->handoff->OnHeartbeat(attempt, event.heartbeat().steps(), now, actions);
  } else if (event.has_sealed()) {
    std::vector<handoff::AnnouncedPage> pages;
    for (const v1::SealedPage& wire : event.sealed().pages()) {
      auto page = FromWire(wire);
      if (!page.ok()) {
        request->handoff->OnStreamEnded(
            absl::UnavailableError(absl::StrCat("the prefill worker sent nonsense: ", page.status().message())), actions);
        break;
      }
      pages.push_back(*std::move(page));
    }
    request->handoff->OnAnnounced(attempt, pages, now, actions);
  }
  counters_.stale_messages += request->handoff->stale_messages() - stale_before;
  Act(id, std::move(actions));
}

void DecodeWorker::OnPrefillEnded(RequestId id, uint64_t serial, const absl::Status& status) {
  Request* request = FindHandoff(id, serial);
  if (request == nullptr) return;
  handoff::DecodeActions actions;
  request->handoff->OnStreamEnded(status, actions);
  Act(id, std::move(actions));
}

void DecodeWorker::IssueRead(Request& request, const handoff::IssueRead& read) {
  const auto view = core_->engine().PageAt(*request.sequence, read.page.ordinal);
  core_->engine().HoldForTransfer(*request.sequence, read.page.ordinal);
  ++counters_.reads;
  const RequestId id = request.id;
  const uint64_t serial = request.handoff_attempt.counter;
  // The completion verifies on the fabric's thread, on the bytes that arrived, while the transfer count is held.
  request.reader->Read({.region = read.page.source.region, .source_offset = read.page.source.offset, .destination = view.payload},
                       [this, id, serial, read, view, begun = Clock::now()](absl::Status status) {
                         const Clock::time_point arrived = Clock::now();
                         kv::Seal seal = read.page.seal;
#ifdef COFFERDAM_FAULTS
                         const auto fault = status.ok() ? core_->injection().Spoil(view.payload, seal) : std::nullopt;
#endif
                         absl::StatusOr<kv::Arrival> arrival =
                             status.ok() ? absl::StatusOr<kv::Arrival>(kv::VerifyArrived(
                                               core_->layout(), view, seal, read.expected_identity, read.expected_tokens))
                                         : std::move(status);
                         ReadResult result{.ordinal = read.page.ordinal,
                                           .at = view,
                                           .arrival = std::move(arrival),
                                           .transfer = arrived - begun,
                                           .verification = Clock::now() - arrived};
#ifdef COFFERDAM_FAULTS
                         result.fault = fault;
#endif
                         loop_.Post([this, id, serial, result = std::move(result)] { OnRead(id, serial, result); });
                       });
}

void DecodeWorker::OnRead(RequestId id, uint64_t serial, const ReadResult& read) {
  core_->engine().EndTransfer(read.at.page, read.at.generation);
  Request* request = FindHandoff(id, serial);
  CD_CHECK(request != nullptr, "I4: a handoff outlives its own reads");
  handoff::DecodeActions actions;
  if (!read.arrival.ok()) {
    ++counters_.reads_failed;
    request->handoff->OnReadFailed(read.ordinal, read.arrival.status(), actions);
  } else {
    counters_.read_bytes += core_->layout().payload_bytes();
    JudgeSeal(*request, read);
    transfer_seconds_.Observe(std::chrono::duration<double>(read.transfer).count());
    verification_seconds_.Observe(std::chrono::duration<double>(read.verification).count());
    request->handoff->OnReadDone(read.ordinal, *read.arrival, actions);
  }
  Act(id, std::move(actions));
  OfferWindow();
}

void DecodeWorker::JudgeSeal(const Request& request, const ReadResult& read) {
#ifdef COFFERDAM_FAULTS
  if (read.fault.has_value()) core_->injection().OnArrivalJudged(*read.fault, request.handoff->running());
#endif
  // Who has given a handoff up has given up the source's pin with it: what such a read finds is nobody's fault, and nobody's page.
  if (!request.handoff->running()) {
    ++counters_.late_reads;
    return;
  }
  kv::CheckCounts::Count& seals = core_->checks()[kv::CheckKind::kSeal];
  ++seals.made;
  const auto* fault = std::get_if<kv::SealFault>(&*read.arrival);
  if (fault == nullptr) return;
  ++seals.failed;
  RecordOnTheWay(request, kv::CheckKind::kSeal, read.at.page, read.at.generation,
                 absl::StrCat(std::string(ToString(*fault)), ", from prefill worker ", request.peer->address()));
}

void DecodeWorker::OfferWindow() {
  // Oldest first: a request that was refused bytes is asked again before younger ones take them.
  const std::vector<RequestId> transferring(transferring_.begin(), transferring_.end());
  for (RequestId id : transferring) {
    Request* request = Find(id);
    if (request == nullptr || request->handoff == nullptr) continue;
    handoff::DecodeActions actions;
    request->handoff->OnWindowFree(actions);
    if (!actions.empty()) Act(id, std::move(actions));
  }
}

void DecodeWorker::Act(RequestId id, handoff::DecodeActions actions) {
  for (const handoff::DecodeAction& action : actions) {
    Request* request = Find(id);
    if (request == nullptr) return;
    if (const auto* read = std::get_if<handoff::IssueRead>(&action)) {
      IssueRead(*request, *read);
    } else if (const auto* adopt = std::get_if<handoff::Adopt>(&action)) {
      engine::WrongPage wrong;
      absl::Status status = core_->engine().Adopt(*request->sequence, adopt->ordinal, adopt->page, request->origin, &wrong);
      if (!status.ok()) {
        // The engine has let the sequence go and has quarantined the page.
        log::error("request {}: {}", request->request_id, std::string(status.message()));
        core_->ledger().OnWrong(*request->sequence, {&wrong, 1}, tenure::kActionEnded, "found at adoption");
        core_->ledger().OnEnded(*request->sequence, tenure::Outcome::kIntegrity, 0, request->pages_verified);
        by_sequence_.erase(*request->sequence);
        request->sequence.reset();
        handoff::DecodeActions then;
        request->handoff->OnAdoptFailed(status, then);
        return Act(id, std::move(then));  // what stood behind this action was made for a handoff that works
      }
      ++request->pages_verified;
      request->call->SetCovered(request->handoff->covered_pages());
    } else if (std::holds_alternative<handoff::CloseStream>(action)) {
      request->call->Close();
    } else if (std::holds_alternative<handoff::ClosePeer>(action)) {
      log::warn("prefill worker {} is silent or stalled; its connection is closed", request->peer->address());
      request->reader->Close();
    } else if (std::holds_alternative<handoff::Complete>(action)) {
      kv::CheckKind check = kv::CheckKind::kContent;
      if (absl::Status status = core_->engine().CheckAdopted(*request->sequence, &check); !status.ok())
        return OnWrongPages(*request, check, status);
      ++counters_.handoffs_completed;
      transferring_.erase(id);
      core_->engine().Run(*request->sequence);
      Accept(*request);
    } else if (const auto* fail = std::get_if<handoff::Fail>(&action)) {
      ++counters_.handoffs_failed;
      request->recompute = request->recompute || absl::IsDataLoss(fail->status);
      request->retry = fail->retry_elsewhere && MayTryAgain(*request);
      log::info("request {}: handoff failed: {}{}", request->request_id, std::string(fail->status.message()),
                request->retry ? "; it is tried again" : "");
      if (!request->retry) Finish(*request, fail->status);
    } else if (std::holds_alternative<handoff::ReleasePages>(action)) {
      OnReleased(*request);
    }
  }
}

void DecodeWorker::OnWrongPages(Request& request, kv::CheckKind check, const absl::Status& status) {
  ++counters_.handoffs_failed;
  log::error("request {}, prefill worker {}: {}", request.request_id, request.peer->address(), std::string(status.message()));
  // Which one it is was not asked; those before came from the cache.
  const auto first = core_->engine().PageAt(*request.sequence, core_->engine().CachedPages(*request.sequence));
  RecordOnTheWay(request, check, first.page, first.generation,
                 absl::StrCat(std::string(status.message()), "; from ", request.peer->address()));
  request.recompute = true;
  // Whatever else that worker sent may be as wrong.
  if (const uint64_t dropped = core_->engine().DropOrigin(request.origin); dropped > 0)
    log::error("{} cached pages that prefill worker {} sent are not used again", dropped, request.peer->address());
  request.retry = MayTryAgain(request);
  if (!request.retry) return Finish(request, status);
  OnReleased(request);
}

void DecodeWorker::OnReleased(Request& request) {
  transferring_.erase(request.id);
  if (request.sequence.has_value()) {
    by_sequence_.erase(*request.sequence);
    core_->engine().Release(*request.sequence);
    core_->ledger().OnEnded(*request.sequence, tenure::Outcome::kFailed, 0, request.pages_verified);
    request.sequence.reset();
  }
  if (!request.retry) {
    requests_.erase(request.id);
    return;
  }
  ++counters_.handoff_retries;
  ForgetHandoff(request);
  // Ahead of younger requests, but holding nothing meanwhile.
  Wait(request);
}

void DecodeWorker::ForgetHandoff(Request& request) {
  request.pages_verified = 0;
  request.handoff.reset();
  request.call.reset();
  request.reader.reset();
}

bool DecodeWorker::MayTryAgain(const Request& request) const {
  if (request.abandoned) return false;
  return request.accepted || (request.handoffs < kMaxHandoffs && WhyNotReady().empty());
}

}  // namespace cofferdam::worker
