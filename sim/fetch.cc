// A decode worker's fetches: the handoff's machine between the engine, the streams and the fabric.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/faults.h"
#include "kv/seal.h"
#include "sim/decode.h"
#include "sim/world.h"

namespace cofferdam::sim {
void Decode::StartFetch(Request& request, size_t peer) {
  const FetchId id = next_fetch_++;
  request.fetch = id;
  request.retry = false;
  Fetch& fetch = fetches_[id];
  const std::vector<TokenId> tokens(request.spec.tokens.begin(), request.spec.tokens.end() - 1);
  handoff::AttemptId attempt{.boot_id = boot_id(), .counter = id};
  if (request.first_attempt.boot_id == 0) request.first_attempt = attempt;
  if (FaultIsOn(Fault::kRetrySameAttempt)) attempt = request.first_attempt;
  const uint32_t first_page = request.cached_tokens / kPageTokens;
  fetch.call = request.call.id;
  fetch.sequence = *request.sequence;
  fetch.peer = peer;
  fetch.reader = peers_[peer].reader;
  fetch.handoff = std::make_unique<handoff::DecodeHandoff>(
      handoff::DecodeHandoff::Options{.attempt = attempt,
                                      .layout_id = SimLayout().id(),
                                      .identities = kv::PageIdentities(request.spec.domain_key, SimLayout(), tokens),
                                      .covered_tokens = tokens.size(),
                                      .first_page = first_page,
                                      .page_tokens = kPageTokens,
                                      .page_bytes = SimLayout().payload_bytes(),
                                      .silence_limit = kBeat * world_.scenario().silent_beats,
                                      .stall_limit = kBeat * world_.scenario().stalled_beats},
      *peers_[peer].window, world_.clock().now());
  fetch.stream = world_.network().Open(index_, peer, id,
                                       {.attempt = attempt,
                                        .domain = request.call.domain,
                                        .tokens = tokens,
                                        .first_page = first_page,
                                        .order = request.spec.order,
                                        .recompute = request.recompute});
}

Decode::Fetch* Decode::Find(FetchId id) {
  const auto found = fetches_.find(id);
  return found == fetches_.end() ? nullptr : &found->second;
}

std::optional<FetchId> Decode::AnyFetchBut(FetchId fetch, uint64_t draw) const {
  std::vector<FetchId> others;
  for (const auto& [id, other] : fetches_) {
    if (id != fetch) others.push_back(id);
  }
  if (others.empty()) return std::nullopt;
  return others[draw % others.size()];
}

void Decode::OnPrefillMessage(FetchId id, const ToDecode& message) {
  const Time now = world_.clock().now();
  Fetch* fetch = Find(id);
  if (FaultIsOn(Fault::kStreamNotMatched) && (fetch == nullptr || !fetch->handoff->running())) {
    // By what names the try, and not by the stream on which it comes.
    for (auto& [other, candidate] : fetches_) {
      const Request* const request = FindRequest(candidate.call);
      if (!candidate.handoff->running() || request == nullptr || request->first_attempt != message.attempt) continue;
      id = other;
      fetch = &candidate;
    }
  }
  if (fetch == nullptr) return;
  handoff::DecodeActions actions;
  if (std::holds_alternative<AdmittedMessage>(message.body)) {
    fetch->handoff->OnAdmitted(message.attempt, now, actions);
  } else if (const auto* beat = std::get_if<BeatMessage>(&message.body)) {
    fetch->handoff->OnHeartbeat(message.attempt, beat->steps, now, actions);
  } else {
    fetch->handoff->OnAnnounced(message.attempt, std::get<SealedMessage>(message.body).pages, now, actions);
  }
  Act(id, std::move(actions));
}

void Decode::OnPrefillEnded(FetchId id, const absl::Status& status) {
  Fetch* const fetch = Find(id);
  if (fetch == nullptr) return;
  handoff::DecodeActions actions;
  fetch->handoff->OnStreamEnded(status, actions);
  Act(id, std::move(actions));
}

void Decode::IssueRead(FetchId id, Fetch& fetch, const handoff::IssueRead& read) {
  const auto view = engine().PageAt(fetch.sequence, read.page.ordinal);
  engine().HoldForTransfer(fetch.sequence, read.page.ordinal);
  fetch.reads.emplace(read.page.ordinal, std::pair(world_.clock().now(), read));
  const ReadTarget target{
      .bytes = view.payload, .page = view.page, .generation = view.generation, .fetch = id, .ordinal = read.page.ordinal};
  world_.fabric().Read(
      fetch.reader, read.page.source, target,
      [this, id, read, view, target, boot = boot_id()](const absl::Status& status, const std::vector<std::byte>& source) {
        if (boot != boot_id()) return;
        kv::Arrived arrived = view;
        if (FaultIsOn(Fault::kCheckedAtSource)) arrived.payload = source;
        absl::StatusOr<kv::Arrival> arrival =
            status.ok() ? absl::StatusOr<kv::Arrival>(
                              kv::VerifyArrived(SimLayout(), arrived, read.page.seal, read.expected_identity, read.expected_tokens))
                        : status;
        world_.Now({Gate::kRead, id, read.page.ordinal}, [this, id, read, target, boot, arrival = std::move(arrival)] {
          if (boot == boot_id()) Post([this, id, read, target, arrival] { OnRead(id, read.page.ordinal, target, arrival); });
        });
      });
}

void Decode::ReadAgain(Time issued_until) {
  for (auto& [id, fetch] : fetches_) {
    for (auto& [ordinal, read] : fetch.reads) {
      if (read.first > issued_until) continue;
      read.first = issued_until + seconds(1000);  // twice is enough
      const auto view = engine().PageAt(fetch.sequence, ordinal);
      const ReadTarget target{
          .bytes = view.payload, .page = view.page, .generation = view.generation, .fetch = id, .ordinal = ordinal};
      world_.fabric().Read(
          fetch.reader, read.second.page.source, target,
          [this, id = id, ordinal = ordinal, view, target, issued = read.second, boot = boot_id()](const absl::Status& status,
                                                                                                   const std::vector<std::byte>&) {
            if (boot != boot_id() || !status.ok()) return;
            world_.Now({Gate::kRead, id, ordinal}, [this, id, ordinal, target, view, issued] {
              Post([this, id, ordinal, target, view, issued] {
                const Fetch* const running = Find(id);
                if (running == nullptr || !running->reads.contains(ordinal)) return;
                OnRead(id, ordinal, target,
                       kv::VerifyArrived(SimLayout(), view, issued.page.seal, issued.expected_identity, issued.expected_tokens));
              });
            });
          });
    }
  }
}

void Decode::OnCopied(const ReadTarget& target) {
  if (!alive() || pool().GenerationOf(target.page) != target.generation)
    world_.Found("invariant", "I7: a read writes into a page in another tenure than that it was issued for");
}

void Decode::OnRead(FetchId id, uint32_t ordinal, const ReadTarget& target, const absl::StatusOr<kv::Arrival>& arrival) {
  Fetch* const fetch = Find(id);
  if (FaultIsOn(Fault::kSecondRead) && (fetch == nullptr || !fetch->reads.contains(ordinal))) return;
  engine().EndTransfer(target.page, target.generation);
  if (fetch == nullptr && FaultIsOn(Fault::kFreeAtTimeout)) return;
  CD_CHECK(fetch != nullptr, "I4: a handoff outlives its own reads");
  fetch->reads.erase(ordinal);
  handoff::DecodeActions actions;
  if (!arrival.ok()) {
    fetch->handoff->OnReadFailed(ordinal, arrival.status(), actions);
  } else {
    fetch->handoff->OnReadDone(ordinal, *arrival, actions);
  }
  Act(id, std::move(actions));
  ActOnAll([](handoff::DecodeHandoff& handoff, handoff::DecodeActions& then) { handoff.OnWindowFree(then); });
}

void Decode::ActOnAll(const Tell& tell) {
  // Acting may end any of them, and their requests may start others.
  std::vector<FetchId> ids;
  ids.reserve(fetches_.size());
  for (const auto& [id, fetch] : fetches_) ids.push_back(id);
  for (const FetchId id : ids) {
    Fetch* const fetch = Find(id);
    if (fetch == nullptr) continue;
    handoff::DecodeActions actions;
    tell(*fetch->handoff, actions);
    if (!actions.empty()) Act(id, std::move(actions));
  }
}
void Decode::Act(FetchId id, handoff::DecodeActions actions) {
  for (const handoff::DecodeAction& action : actions) {
    Fetch* const fetch = Find(id);
    if (fetch == nullptr) return;
    if (const auto* read = std::get_if<handoff::IssueRead>(&action)) {
      IssueRead(id, *fetch, *read);
    } else if (const auto* adopt = std::get_if<handoff::Adopt>(&action)) {
      if (!Adopt(id, *adopt)) return;
    } else if (std::holds_alternative<handoff::CloseStream>(action)) {
      world_.network().CloseByDecode(fetch->stream);
    } else if (std::holds_alternative<handoff::ClosePeer>(action)) {
      world_.OnPeerClosed();
      world_.fabric().Close(*fetch->reader);
    } else if (std::holds_alternative<handoff::Complete>(action)) {
      return OnComplete(id);
    } else if (const auto* fail = std::get_if<handoff::Fail>(&action)) {
      OnFetchFailed(requests_.at(fetch->call), *fail, fetch->sequence_gone);
    } else if (std::holds_alternative<handoff::ReleasePages>(action)) {
      const CallId call = fetch->call;
      fetches_.erase(id);
      return OnReleased(call);
    }
  }
}

bool Decode::Adopt(FetchId id, const handoff::Adopt& adopt) {
  Fetch& fetch = fetches_.at(id);
  const absl::Status status = engine().Adopt(fetch.sequence, adopt.ordinal, adopt.page, peers_[fetch.peer].boot_id);
  if (status.ok()) return true;
  // The engine has let the sequence go and has quarantined the page.
  fetch.sequence_gone = true;
  handoff::DecodeActions then;
  fetch.handoff->OnAdoptFailed(status, then);
  Act(id, std::move(then));
  return false;
}

void Decode::OnComplete(FetchId id) {
  Fetch& fetch = fetches_.at(id);
  Request& request = requests_.at(fetch.call);
  const absl::Status status = engine().CheckAdopted(fetch.sequence);
  if (!status.ok()) engine().DropOrigin(peers_[fetch.peer].boot_id);
  fetches_.erase(id);
  if (status.ok()) return OnFetched(request);
  const CallId call = request.call.id;
  OnFetchFailed(request, {.status = status, .retry_elsewhere = true}, false);
  OnReleased(call);
}

void Decode::OnBeat() {
  for (const auto& [id, fetch] : fetches_) {
    if (fetch.handoff->running()) world_.network().SendBeatToPrefill(fetch.stream, fetch.handoff->covered_pages());
  }
}

}  // namespace cofferdam::sim
