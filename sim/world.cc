#include "sim/world.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cofferdam::sim {
namespace {

constexpr Duration kProbe = milliseconds(100);
constexpr Duration kLongest = seconds(300);  // until every request has ended, from the last input
constexpr Duration kSettle = seconds(15);    // until nothing is left of them, with cut links and held loops in between

}  // namespace

World::World(const Scenario& scenario, std::function<void(const std::string&)> say)
    : scenario_(scenario),
      say_(std::move(say)),
      network_(*this, scenario.seed),
      fabric_(*this, scenario.seed),
      faultless_(scenario.faults() == 0 && !scenario.disturbed) {
  for (size_t i = 0; i < scenario.prefills; ++i) prefills_.push_back(std::make_unique<Prefill>(*this, i));
  for (size_t i = 0; i < scenario.decodes; ++i) decodes_.push_back(std::make_unique<Decode>(*this, i));
  for (size_t i = 0; i < scenario.gateways; ++i) gateways_.push_back(std::make_unique<Gateway>(*this, i));
  for (const auto& prefill : prefills_) prefill->Boot();
  for (const auto& decode : decodes_) decode->Boot();
  for (const auto& decode : decodes_) decode->LookAtPeers();
}

World::~World() {
  for (const auto& decode : decodes_) decode->Crash();
  for (const auto& prefill : prefills_) prefill->Crash();
}

uint64_t World::PrefillContext() const { return std::min(scenario_.context_tokens, scenario_.prefill_pages * kPageTokens); }

uint64_t World::DecodeContext() const { return std::min(scenario_.context_tokens, scenario_.decode_pages * kPageTokens); }

bool World::Fits(const Input& request) const {
  const uint64_t tokens = request.tokens.size() + request.max_output;
  const bool handed_over = request.tokens.size() > kPageTokens;
  return tokens <= DecodeContext() && (!handed_over || tokens <= PrefillContext());
}

void World::Say(const std::string& what) {
  if (say_ != nullptr) say_(absl::StrCat(std::chrono::duration_cast<microseconds>(clock_.now() - Time()).count(), " us  ", what));
}

void World::Found(std::string_view kind, std::string what) {
  if (!outcome_.kind.empty()) return;
  outcome_.kind = std::string(kind);
  outcome_.what = std::move(what);
  Say(absl::StrCat("FOUND: ", outcome_.kind, ": ", outcome_.what));
}

void World::At(Time time, const GateKey& key, Agenda::Action action) {
  if (gates_.closed()) return gates_.Hold(key, std::move(action));
  clock_.At(time, std::move(action));
}

void World::MemoryAt(Time time, const GateKey& key, Agenda::Action action) {
  if (gates_.closed()) return gates_.Hold(key, std::move(action));
  clock_.MemoryAt(time, std::move(action));
}

void World::Now(const GateKey& key, const Agenda::Action& action) {
  if (gates_.closed()) return gates_.Hold(key, action);
  action();
}

void World::OnPagesTaken(Worker& worker, SequenceId sequence, uint32_t domain) {
  uint32_t cached = worker.engine().CachedPages(sequence);
  for (const auto& [page, generation] : worker.engine().TenuresOf(sequence)) {
    // A trail ends where the model sees this; otherwise only what comes of it counts, for reads and steps cover the bytes again.
    const bool fresh = cached == 0;
    cached -= fresh ? 0 : 1;
    if (gates_.closed() && fresh &&
        !std::ranges::all_of(worker.pool().Payload(page), [](std::byte b) { return b == std::byte{0}; }))
      Found("invariant", absl::StrCat("I7: page ", page.value(), " of ", worker.name(), " is handed out and is not zero"));
    const auto [found, added] = domains_.emplace(Mix(worker.boot_id(), generation.value()), domain);
    if (found->second != domain)
      Found("invariant", absl::StrCat("I10: page ", page.value(), " of ", worker.name(), " is used by two domains"));
  }
}

void World::OnHandoffFailed(const absl::Status& status) {
  ++outcome_.handoff_failures;
  if (tracing()) Say(absl::StrCat("a handoff failed: ", status.ToString()));
  if (faultless_ && !absl::IsCancelled(status)) Found("disturbed", absl::StrCat("a handoff failed: ", status.ToString()));
}

void World::OnPeerClosed() {
  if (faultless_) Found("disturbed", "a peer was given up");
}

void World::OnRequestEnded(const Input& input, size_t received, const absl::Status& status) {
  outcome_.tokens += received;
  if (tracing())
    Say(absl::StrCat("a request of ", input.tokens.size(), " tokens ended: ", status.ToString(), ", ", received, " tokens"));
  status.ok() ? ++outcome_.answered : ++outcome_.failed;
  if (status.ok() && input.tokens.size() + input.max_output > DecodeContext())
    Found("invariant", "I1: a request that does not fit was answered");
  if (!faultless_ || status.ok() || absl::IsCancelled(status)) return;
  if (Fits(input) || !absl::IsInvalidArgument(status)) Found("disturbed", absl::StrCat("a request failed: ", status.ToString()));
}

// ---- calls

CallId World::OpenCall(size_t gateway, size_t decode, Call call) {
  const CallId id = next_call_++;
  call.id = id;
  call.gateway = gateway;
  OpenedCall& opened = calls_[id];
  opened = {.gateway = gateway, .decode = decode, .decode_boot = decodes_[decode]->boot_id()};
  opened.last_to_decode = clock_.now() + network_.Delay();
  At(opened.last_to_decode, {Gate::kCall, id}, [this, decode, boot = opened.decode_boot, call = std::move(call)] {
    Decode& worker = *decodes_[decode];
    if (worker.boot_id() == boot) worker.Post([&worker, call] { worker.OnCall(call); });
  });
  return id;
}

template <typename Tell>
void World::ToGateway(CallId id, Tell tell) {
  OpenedCall& call = calls_.at(id);
  Time at = clock_.now() + network_.Delay();
  if (const auto cut = cut_.find({call.gateway, call.decode}); cut != cut_.end()) at = std::max(at, cut->second + network_.Delay());
  call.last_to_gateway = std::max(call.last_to_gateway + Duration(1), at);
  clock_.At(call.last_to_gateway, [gateway = &*gateways_[call.gateway], tell] { tell(*gateway); });
}

void World::AcceptCall(size_t, CallId id, const handoff::AttemptId& attempt) {
  ToGateway(id, [id, attempt](Gateway& gateway) { gateway.OnAccepted(id, attempt); });
}
void World::SendToken(size_t, CallId id, const handoff::AttemptId& attempt, uint32_t index, Answer answer) {
  ToGateway(id, [=](Gateway& gateway) { gateway.OnToken(id, attempt, index, answer); });
}
void World::FinishCall(size_t, CallId id, const handoff::AttemptId& attempt, uint32_t generated) {
  ToGateway(id, [=](Gateway& gateway) { gateway.OnFinished(id, attempt, generated); });
}
void World::EndCall(size_t, CallId id, const absl::Status& status) {
  ToGateway(id, [=](Gateway& gateway) { gateway.OnEnded(id, status); });
}

void World::CancelCall(CallId id) {
  OpenedCall& call = calls_.at(id);
  Time at = clock_.now() + network_.Delay();
  if (const auto cut = cut_.find({call.gateway, call.decode}); cut != cut_.end()) at = std::max(at, cut->second + network_.Delay());
  call.last_to_decode = std::max(call.last_to_decode + Duration(1), at);
  At(call.last_to_decode, {Gate::kCallOver, id}, [this, id, decode = call.decode, boot = call.decode_boot] {
    Decode& worker = *decodes_[decode];
    if (worker.boot_id() == boot) worker.Post([&worker, id] { worker.OnCancelled(id); });
  });
}

bool World::Reaches(size_t gateway, size_t decode) const {
  const auto cut = cut_.find({gateway, decode});
  return decodes_[decode]->alive() && decodes_[decode]->speaks() && (cut == cut_.end() || cut->second <= clock_.now());
}

std::optional<size_t> World::PickDecode(size_t gateway, std::optional<size_t> avoid) {
  for (const bool any : {false, true}) {
    for (size_t i = 0; i < decodes_.size(); ++i) {
      const size_t index = (next_decode_ + i) % decodes_.size();
      if ((!any && avoid == index) || !Reaches(gateway, index)) continue;
      next_decode_ = index + 1;
      return index;
    }
  }
  return std::nullopt;
}

// ---- the course of a simulation

void World::Start(const Input& input) {
  if (!input.is_request) return Disturb(input);
  ++outcome_.requests;
  gateways_[input.gateway]->OnRequest(input);
}

void World::Probe() {
  for (const auto& decode : decodes_) {
    if (decode->alive()) decode->LookAtPeers();
  }
  for (const auto& gateway : gateways_) gateway->Probe();
  if (!AllDone()) clock_.After(kProbe, [this] { Probe(); });
}

bool World::AllDone() const {
  return inputs_left_ == 0 && restarts_ == 0 &&
         std::ranges::all_of(gateways_, [](const auto& gateway) { return gateway->open() == 0; });
}

void World::CheckEnd() {
  for (const auto& decode : decodes_) {
    if (std::string left = decode->LeftOverHere(); !left.empty()) return Found("left over", left);
  }
  for (const auto& prefill : prefills_) {
    if (std::string left = prefill->LeftOverHere(); !left.empty()) return Found("left over", left);
  }
  if (network_.streams() > 0) Found("left over", "a stream is still open");
}

Outcome World::Run() {
  inputs_left_ = scenario_.inputs.size();
  for (const Input& input : scenario_.inputs) {
    clock_.At(input.at, [this, &input] {
      --inputs_left_;
      Start(input);
    });
  }
  return Finish();
}

void World::RunFor(Duration duration) {
  const Time until = clock_.now() + duration;
  clock_.At(until, [] {});
  while (outcome_.kind.empty() && clock_.now() < until && clock_.RunNext()) {
  }
}

Outcome World::Finish() {
  gates_.Open([this](Agenda::Action action) { clock_.After(Duration(), std::move(action)); });
  clock_.After(kProbe, [this] { Probe(); });
  Time last = clock_.now();
  for (const Input& input : scenario_.inputs) last = std::max(last, input.at);
  std::optional<Time> done_at;
  while (outcome_.kind.empty() && clock_.RunNext()) {
    if (!done_at.has_value() && AllDone()) done_at = clock_.now();
    if (done_at.has_value() && clock_.now() - *done_at > kSettle) break;
    if (!done_at.has_value() && clock_.now() - last > kLongest) Found("never ends", "requests are still open");
  }
  if (outcome_.kind.empty() && !AllDone()) Found("never ends", "nothing happens any more, and requests are still open");
  if (outcome_.kind.empty()) CheckEnd();
  outcome_.events = clock_.events();
  return outcome_;
}

Outcome Simulate(const Scenario& scenario) { return World(scenario).Run(); }

}  // namespace cofferdam::sim
