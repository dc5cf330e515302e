// The faults of a scenario, as they happen.
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/world.h"

namespace cofferdam::sim {
namespace {

Duration Short(uint64_t amount) { return milliseconds(1 + amount % 50); }
Duration Long(uint64_t amount) { return milliseconds(1 + amount % 4000); }

}  // namespace

void World::Hold(Worker& worker, uint64_t amount, bool silent) {
  worker.Hold(clock_.now() + (amount % 3 == 0 ? Long(amount / 3) : Short(amount / 3)), silent);
}

void World::CrashDecode(size_t index, uint64_t amount) {
  Decode& worker = *decodes_[index];
  if (!worker.alive()) return;
  const uint64_t boot = worker.boot_id();
  worker.Crash();
  network_.BreakAllOf(true, index);
  for (const auto& [id, call] : calls_) {
    if (call.decode == index && call.decode_boot == boot) EndCall(call.gateway, id, absl::UnavailableError("the worker is gone"));
  }
  ++restarts_;
  clock_.After(Short(amount) + (amount % 5 == 0 ? seconds(1) : seconds(0)), [this, &worker] {
    --restarts_;
    worker.Boot();
    worker.LookAtPeers();
  });
}

void World::CrashPrefill(size_t index, uint64_t amount) {
  Prefill& worker = *prefills_[index];
  if (!worker.alive()) return;
  worker.Crash();
  network_.BreakAllOf(false, index);
  ++restarts_;
  clock_.After(Short(amount) + (amount % 5 == 0 ? seconds(1) : seconds(0)), [this, &worker] {
    --restarts_;
    worker.Boot();
  });
}

void World::BreakCall(uint64_t draw) {
  if (calls_.empty()) return;
  const auto call = std::next(calls_.begin(), static_cast<ptrdiff_t>(draw % calls_.size()));
  EndCall(call->second.gateway, call->first, absl::UnavailableError("the connection broke"));
  // The worker may learn of it, or not.
  if (draw / 64 % 2 == 0) CancelCall(call->first);
}

void World::Disturb(const Input& fault) {
  Say(absl::StrCat("fault: ", NameOf(fault.fault)));
  const size_t at_decode = fault.worker % decodes_.size(), at_prefill = fault.worker % prefills_.size();
  Decode& decode = *decodes_[at_decode];
  Prefill& prefill = *prefills_[at_prefill];
  Worker& either = fault.worker / 3 == 0 ? static_cast<Worker&>(decode) : prefill;
  const uint64_t amount = fault.amount;
  switch (fault.fault) {
    case FaultKind::kCrashDecode:
      return CrashDecode(at_decode, amount);
    case FaultKind::kCrashPrefill:
      return CrashPrefill(at_prefill, amount);
    case FaultKind::kFreezeDecode:
      return Hold(decode, amount, true);
    case FaultKind::kFreezePrefill:
      return Hold(prefill, amount, true);
    case FaultKind::kHangDecode:
      return Hold(decode, amount, false);
    case FaultKind::kHangPrefill:
      return Hold(prefill, amount, false);
    case FaultKind::kCutLink:
      return network_.Cut(at_decode, at_prefill, clock_.now() + Long(amount));
    case FaultKind::kCutGateway:
      cut_[{amount % gateways_.size(), at_decode}] = clock_.now() + Long(amount);
      return;
    case FaultKind::kBreakStream:
      if (const auto stream = network_.AnyStreamOf(at_decode, amount)) network_.Break(*stream);
      return;
    case FaultKind::kBreakCall:
      return BreakCall(amount);
    case FaultKind::kDropMessage:
    case FaultKind::kRepeatMessage:
    case FaultKind::kSpoilMessage:
    case FaultKind::kMisdeliver:
      return network_.Disturb(at_decode, fault.fault, amount);
    case FaultKind::kEndWell:
      return prefill.EndOneWell(amount);
    case FaultKind::kFailRead:
    case FaultKind::kTearRead:
    case FaultKind::kFlipArrival:
      return fabric_.Disturb(at_decode, fault.fault, amount);
    case FaultKind::kFlipSealed:
      if (either.alive()) either.FlipSealedBit(amount);
      return;
    case FaultKind::kFlipTag:
      if (either.alive()) either.FlipTagBit(amount);
      return;
    case FaultKind::kTakePages:
      if (either.alive()) either.TakePages(clock_.now() + Long(amount), amount / 4096 % 3);
      return;
  }
}

}  // namespace cofferdam::sim
