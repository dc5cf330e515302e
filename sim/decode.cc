#include "sim/decode.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/faults.h"
#include "sim/world.h"

namespace cofferdam::sim {
namespace {

constexpr int kMaxHandoffs = 3;                  // as in src/worker
constexpr Duration kLongRead = milliseconds(2);  // Fault::kSecondRead

}  // namespace

Decode::Decode(World& world, size_t index) : Worker(world, "decode", index, world.scenario().decode_pages) {}

void Decode::Forget() {
  for (const Peer& peer : peers_) {
    if (peer.reader != nullptr) world_.fabric().Close(*peer.reader);
  }
  requests_.clear();
  queue_.clear();
  by_sequence_.clear();
  fetches_.clear();
  peers_.clear();
  all_peers_.reset();
}

void Decode::LookAtPeers() {
  const Scenario& scenario = world_.scenario();
  const size_t page = SimLayout().payload_bytes();
  const size_t window = scenario.window_pages == 0 ? page / 2 : scenario.window_pages * page;
  if (all_peers_ == nullptr)
    all_peers_ = std::make_unique<handoff::TransferWindow>(window * std::clamp<size_t>(scenario.prefills, 1, 2));
  peers_.resize(scenario.prefills);
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (peer.window == nullptr) peer.window = std::make_unique<handoff::TransferWindow>(window, &*all_peers_);
    const Prefill& worker = world_.prefill(i);
    peer.ready = worker.alive() && !world_.network().IsCut(index_, i);
    if (!peer.ready) continue;
    if (peer.reader != nullptr && peer.boot_id == worker.boot_id() && !peer.reader->closed()) continue;
    if (peer.reader != nullptr && !peer.reader->closed()) world_.fabric().Close(*peer.reader);
    peer.boot_id = worker.boot_id();
    peer.reader = world_.fabric().Connect(index_, i);
  }
}

Decode::Request* Decode::FindRequest(CallId id) {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : &found->second;
}

absl::Status Decode::Judge(const engine::SequenceSpec& spec) {
  if (absl::Status status = engine().CheckSpec(spec); !status.ok()) return status;
  const bool handed_over = spec.tokens.size() > kPageTokens;
  if (handed_over && spec.tokens.size() + spec.max_output > world_.PrefillContext() && !FaultIsOn(Fault::kPeerNotJudged))
    return absl::InvalidArgumentError("longer than the prefill workers' context");
  return absl::OkStatus();
}

void Decode::OnCall(Call call) {
  const CallId id = call.id;
  engine::SequenceSpec spec{.domain_key = KeyOf(call.domain), .domain = NameOf(call.domain)};
  spec.tokens = call.tokens;
  spec.resumed_tokens = call.resumed_tokens;
  spec.max_output = call.max_output;
  spec.order = 1 - call.priority;
  spec.sampling = {.temperature = 0};
  if (absl::Status status = Judge(spec); !status.ok()) return world_.EndCall(call.gateway, id, status);
  Request& request = requests_[id];
  request.call = std::move(call);
  request.spec = std::move(spec);
  queue_.emplace(request.spec.order, id);
  if (FaultIsOn(Fault::kPinsHeldQueued)) HoldWhileQueued(request);
  StartWaiting();
}

bool Decode::TryStart(Request& request) {
  auto result = engine().Start(request.spec);
  if (std::holds_alternative<kv::MustWait>(result)) {
    if (FaultIsOn(Fault::kPinsHeldQueued)) HoldWhileQueued(request);
    return false;
  }
  if (request.held.has_value()) engine().Release(*std::exchange(request.held, std::nullopt));
  if (auto* rejected = std::get_if<kv::Rejected>(&result)) {
    Finish(request, rejected->status);
    return true;
  }
  request.sequence = std::get<engine::Engine::Started>(result).sequence;
  by_sequence_.emplace(*request.sequence, request.call.id);
  world_.OnPagesTaken(*this, *request.sequence, request.call.domain);
  Begin(request);
  return true;
}

void Decode::HoldWhileQueued(Request& request) {
  engine::SequenceSpec spec{.domain_key = request.spec.domain_key, .domain = request.spec.domain};
  for (size_t pages = (request.spec.tokens.size() - 1) / kPageTokens; pages > 0 && !request.held.has_value(); --pages) {
    spec.tokens.assign(request.spec.tokens.begin(), request.spec.tokens.begin() + static_cast<ptrdiff_t>(pages * kPageTokens));
    request.held = engine().HoldCached(spec);
  }
}

void Decode::StartWaiting() {
  for (auto next = queue_.begin(); next != queue_.end();) {
    Request* const request = FindRequest(next->second);
    if (request != nullptr && !world_.gates().MayAdmit(Gate::kCall, next->second)) {
      ++next;
      continue;
    }
    if (request != nullptr && !TryStart(*request)) {
      // Only the mutant asks for those behind the first.
      if (!FaultIsOn(Fault::kPinsHeldQueued)) return;
      ++next;
      continue;
    }
    world_.gates().DoNotAdmit(Gate::kCall, next->second);
    next = queue_.erase(next);
  }
}

void Decode::Begin(Request& request) {
  request.cached_tokens = engine().CachedPages(*request.sequence) * kPageTokens;
  const uint64_t missing = request.spec.tokens.size() - 1 - request.cached_tokens - engine().TokensToCopy(*request.sequence);
  if (missing < world_.scenario().least_handed_over) return ComputeHere(request);
  OpenHandoff(request);
}

void Decode::ComputeHere(Request& request) {
  engine().Run(*request.sequence);
  Accept(request);
}

std::optional<size_t> Decode::ChoosePeer(const Request& request) {
  std::optional<size_t> same;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const size_t index = (next_peer_ + i) % peers_.size();
    const Peer& peer = peers_[index];
    if (!peer.ready || peer.reader == nullptr || peer.reader->closed()) continue;
    if (request.peer == index) {
      same = index;
      continue;
    }
    next_peer_ = index + 1;
    return index;
  }
  return same;
}

void Decode::OpenHandoff(Request& request) {
  request.peer = ChoosePeer(request);
  if (request.accepted && (!request.peer.has_value() || request.handoffs >= kMaxHandoffs)) return ComputeHere(request);
  if (!request.peer.has_value()) return Finish(request, absl::UnavailableError("no prefill worker is ready"));
  ++request.handoffs;
  StartFetch(request, *request.peer);
}

void Decode::Accept(Request& request) {
  if (std::exchange(request.accepted, true)) return;
  world_.AcceptCall(request.call.gateway, request.call.id, request.call.attempt);
}

void Decode::Finish(Request& request, const absl::Status& status) {
  if (!std::exchange(request.ended, true)) world_.EndCall(request.call.gateway, request.call.id, status);
  request.retry = false;
  if (request.fetch.has_value()) return;
  if (request.held.has_value()) engine().Release(*request.held);
  if (request.sequence.has_value()) {
    by_sequence_.erase(*request.sequence);
    engine().Release(*request.sequence);
  }
  requests_.erase(request.call.id);
}

void Decode::OnCancelled(CallId id) {
  Request* const request = FindRequest(id);
  if (request == nullptr) return;
  Fetch* const fetch = request->fetch.has_value() ? Find(*request->fetch) : nullptr;
  if (fetch != nullptr && fetch->handoff->running()) {
    handoff::DecodeActions actions;
    fetch->handoff->OnCancel(actions);
    Act(*request->fetch, std::move(actions));
  } else {
    Finish(*request, absl::CancelledError("the request was cancelled"));
  }
}

void Decode::OnFetched(Request& request) {
  request.fetch.reset();
  engine().Run(*request.sequence);
  Accept(request);
}

bool Decode::MayTryAgain(const Request& request) const {
  const bool any = std::ranges::any_of(peers_, [](const Peer& peer) { return peer.ready; });
  return request.accepted || (request.handoffs < kMaxHandoffs && any);
}

void Decode::OnFetchFailed(Request& request, const handoff::Fail& fail, bool sequence_gone) {
  if (sequence_gone) {
    by_sequence_.erase(*request.sequence);
    request.sequence.reset();
  }
  world_.OnHandoffFailed(fail.status);
  request.recompute = request.recompute || absl::IsDataLoss(fail.status);
  request.retry = fail.retry_elsewhere && MayTryAgain(request);
  if (!request.retry) Finish(request, fail.status);
}

void Decode::OnReleased(CallId id) {
  Request& request = requests_.at(id);
  request.fetch.reset();
  if (request.sequence.has_value()) {
    by_sequence_.erase(*request.sequence);
    engine().Release(*request.sequence);
    request.sequence.reset();
  }
  if (!request.retry) {
    requests_.erase(id);
    return;
  }
  ++retries_;
  queue_.emplace(request.spec.order, id);
}

void Decode::OnPreempted(Request& request, const engine::PreemptedEvent& event) {
  by_sequence_.erase(event.sequence);
  request.sequence.reset();
  const auto generated = static_cast<uint32_t>(event.generated.size());
  request.spec.tokens.insert(request.spec.tokens.end(), event.generated.begin(), event.generated.end());
  request.spec.resumed_tokens += generated;
  request.spec.max_output -= generated;
  request.generated += generated;
  request.handoffs = 0;
  queue_.emplace(request.spec.order, request.call.id);
}

void Decode::OnEvent(Request& request, const engine::Event& event) {
  const auto [gateway, id, attempt] = std::tuple(request.call.gateway, request.call.id, request.call.attempt);
  if (const auto* token = std::get_if<engine::TokenEvent>(&event)) {
    world_.SendToken(gateway, id, attempt, token->index, {.token = token->token, .logprob = token->logprob});
  } else if (const auto* finished = std::get_if<engine::FinishedEvent>(&event)) {
    world_.FinishCall(gateway, id, attempt, request.generated + finished->generated);
    Finish(request, absl::OkStatus());
  } else if (const auto* failed = std::get_if<engine::FailedEvent>(&event)) {
    Finish(request, failed->status);
  } else if (const auto* preempted = std::get_if<engine::PreemptedEvent>(&event)) {
    OnPreempted(request, *preempted);
  }
}

void Decode::OnEvents(const std::vector<engine::Event>& events) {
  for (const engine::Event& event : events) {
    const auto found = by_sequence_.find(engine::SequenceOf(event));
    if (found != by_sequence_.end()) OnEvent(requests_.at(found->second), event);
  }
}

void Decode::OnTurn(Time now) {
  StartWaiting();
  ActOnAll([now](handoff::DecodeHandoff& handoff, handoff::DecodeActions& actions) { handoff.OnTick(now, actions); });
  if (FaultIsOn(Fault::kSecondRead) && !world_.gates().closed()) ReadAgain(now - kLongRead);
}

std::optional<std::pair<FetchId, StreamId>> Decode::LastFetchOf(CallId call) const {
  for (auto fetch = fetches_.rbegin(); fetch != fetches_.rend(); ++fetch) {
    if (fetch->second.call == call) return std::pair(fetch->first, fetch->second.stream);
  }
  return std::nullopt;
}

std::string Decode::LeftOverHere() const {
  if (!requests_.empty() || !fetches_.empty()) return absl::StrCat(name(), " still has requests");
  for (const Peer& peer : peers_) {
    if (peer.window->in_flight_bytes() > 0 || peer.window->waiting() > 0) return absl::StrCat(name(), "'s window is not empty");
  }
  return LeftOver();
}

}  // namespace cofferdam::sim
