// Between the messages of proto/ and the values of the machines. Everything that a peer sends is checked for its form here.
#ifndef COFFERDAM_WORKER_WIRE_H_
#define COFFERDAM_WORKER_WIRE_H_

#include <string>

#include "absl/status/statusor.h"
#include "cofferdam.pb.h"
#include "engine/engine.h"
#include "handoff/decode_handoff.h"
#include "handoff/types.h"
#include "kv/checks.h"
#include "kv/seal.h"

namespace cofferdam::worker {

inline constexpr size_t kMaxIdBytes = 256;  // of a request id, of a domain
inline constexpr uint32_t kMaxPriority = 60;

// SequenceSpec::order of a request that comes now: one of priority p stands with those that come p seconds later. So whoever is
// late enough stands behind it, and nobody waits for ever. Thread-safe.
uint64_t OrderOf(uint32_t priority);

void ToWire(const handoff::AttemptId& attempt, v1::Attempt* wire);
handoff::AttemptId FromWire(const v1::Attempt& wire);

void ToWire(const handoff::AnnouncedPage& page, v1::SealedPage* wire);
// InvalidArgument when a digest has not 16 bytes.
absl::StatusOr<handoff::AnnouncedPage> FromWire(const v1::SealedPage& wire);

std::string ToWire(const kv::Digest128& digest);
// InvalidArgument when it has not 16 bytes.
absl::StatusOr<kv::Digest128> DigestFromWire(const std::string& wire);

// The checks that were made, by kind. A kind that was not is left out.
void ToWire(const kv::CheckCounts& checks, v1::Finished* wire);

// The spec of a decode request; `domain_key` is left to the caller. InvalidArgument for lists whose lengths do not match
// or that are too long. Whether the values can be served is the engine's to judge.
absl::StatusOr<engine::SequenceSpec> FromWire(const v1::GenerateRequest& wire);

// The spec of a run; `domain_key` and `domain` are left to the caller. InvalidArgument for ids that are too long, or such a
// priority.
absl::StatusOr<engine::SequenceSpec> FromWire(const v1::Open& wire);

// A message of a run, to the machine that it is for. One without content has no effect.
void Deliver(const v1::PrefillEvent& event, handoff::Time now, handoff::DecodeHandoff& handoff, handoff::DecodeActions& actions);

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_WIRE_H_
