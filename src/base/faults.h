// Fault points: switches that re-create the wrong behaviour of a part, so that it can be shown which others catch it.
//
// They exist only in builds with COFFERDAM_FAULTS=ON. Elsewhere FaultIsOn is the constant false, the compiler drops what stands
// behind it, and a test finds no switch's name in the binary.
#ifndef COFFERDAM_BASE_FAULTS_H_
#define COFFERDAM_BASE_FAULTS_H_

#include <cstddef>
#include <cstdint>

#ifdef COFFERDAM_FAULTS
#include <array>
#include <atomic>
#include <optional>
#include <string_view>
#endif

namespace cofferdam {

enum class Fault : uint8_t {
  kTagsNotCompared,      // a step does not look at the tags of its pages
  kIdentityNotChecked,   // a page that arrives may be that of other tokens
  kChecksumNotChecked,   // a page that arrives may hold other bytes than it was sealed with
  kNoSealChecksum,       // a page is sealed without a look at its bytes
  kContentNotChecked,    // layer 0 of adopted pages is not computed again
  kNoZeroing,            // a page returns to the free list as it was left
  kPlaceholderPrompt,    // a prefill worker computes a placeholder at every position of a prompt
  kIdentityFromRequest,  // a page is named by the tokens that were asked for, not by those that were computed
};

#ifdef COFFERDAM_FAULTS

inline constexpr std::array<std::string_view, 8> kFaultNames = {
    "tags-not-compared",   "identity-not-checked", "checksum-not-checked", "no-seal-checksum",
    "content-not-checked", "no-zeroing",           "placeholder-prompt",   "identity-from-request"};

namespace internal {
inline std::atomic<uint64_t> faults_on{0};
}

// Any thread.
inline bool FaultIsOn(Fault fault) {
  return (internal::faults_on.load(std::memory_order_relaxed) >> static_cast<unsigned>(fault) & 1) != 0;
}
inline void SetFault(Fault fault, bool on) {
  const uint64_t bit = uint64_t{1} << static_cast<unsigned>(fault);
  if (on) {
    internal::faults_on.fetch_or(bit);
  } else {
    internal::faults_on.fetch_and(~bit);
  }
}
inline std::optional<Fault> FaultNamed(std::string_view name) {
  for (size_t i = 0; i < kFaultNames.size(); ++i) {
    if (kFaultNames[i] == name) return static_cast<Fault>(i);
  }
  return std::nullopt;
}

#else

constexpr bool FaultIsOn(Fault) { return false; }

#endif

}  // namespace cofferdam

#endif  // COFFERDAM_BASE_FAULTS_H_
