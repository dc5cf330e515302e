// What one seed stands for: the sizes of a cluster, what its clients ask, and which faults happen when.
#ifndef COFFERDAM_SIM_SCENARIO_H_
#define COFFERDAM_SIM_SCENARIO_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/strong_id.h"
#include "engine/verify.h"
#include "sim/clock.h"
#include "sim/content.h"

namespace cofferdam::sim {

enum class FaultKind : uint8_t {
  kCrashDecode,  // a process ends, and comes back with another boot id and empty memory
  kCrashPrefill,
  kFreezeDecode,  // a machine stands still for a while, and its clock jumps
  kFreezePrefill,
  kHangDecode,  // an engine's loop hangs, while heartbeats go on
  kHangPrefill,
  kCutLink,        // nothing passes between a decode and a prefill worker for a while
  kCutGateway,     // nor between a gateway and a decode worker
  kBreakStream,    // a handoff's stream ends
  kBreakCall,      // a gateway's call ends
  kDropMessage,    // the next message of a handoff is lost
  kRepeatMessage,  // or comes twice
  kSpoilMessage,   // or says something else
  kMisdeliver,     // or reaches the stream of another handoff of the worker, too
  kEndWell,        // a prefill worker ends a stream as if all were said
  kFailRead,       // the next read of a decode worker fails
  kTearRead,       // or its second part is not copied
  kFlipArrival,    // or a bit of it flips on the way
  kFlipSealed,     // a bit of a sealed page flips
  kFlipTag,        // or of a page's tag
  kTakePages,      // somebody holds most free pages of a worker for a while
};
inline constexpr size_t kFaultKinds = 21;
const char* NameOf(FaultKind kind);

struct Input {
  Time at{};
  // A client's request.
  bool is_request = false;
  size_t gateway = 0;
  uint32_t domain = 0;
  std::vector<TokenId> tokens{};
  uint32_t max_output = 0;
  uint32_t priority = 0;
  Duration patience{};  // 0: the client stays
  // Or a fault, at a worker; `amount` is drawn for it.
  FaultKind fault = FaultKind::kCrashDecode;
  size_t worker = 0;
  uint64_t amount = 0;
};

struct Scenario {
  uint64_t seed = 0;
  size_t gateways = 1, decodes = 1, prefills = 1;
  uint64_t decode_pages = 0, prefill_pages = 0;
  uint64_t context_tokens = 0;
  uint32_t first_output_tokens = 0, chunk_tokens = 0, max_sequences = 0;
  size_t window_pages = 0;  // 0: less than one
  engine::VerifyReads verify{};
  bool verify_content = true, prefix_cache = true, lifo = false;
  uint32_t least_handed_over = kPageTokens;  // where fewer tokens of a prompt are missing, decode computes them
  int silent_beats = 3;                      // as in src/worker
  int stalled_beats = 60;                    // as in src/worker
  uint64_t prefill_takes_tokens = 0;         // at most, whatever it says of itself; 0: as many as it says
  bool disturbed = false;                    // by more than its inputs say
  uint64_t slow_messages = 0;                // one message in so many takes long; 0: none
  std::vector<Input> inputs{};               // by time
  std::vector<size_t> kept{};                // of the inputs of the seed, those that are here

  size_t faults() const;
  std::string Describe() const;
};

// Always the same for one seed. `keep`, unless empty, names the inputs that stay.
Scenario MakeScenario(uint64_t seed, const std::vector<size_t>& keep = {});

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_SCENARIO_H_
