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
  // Wrong behaviours of the past.
  kRejectGoesOn,         // a prompt that a prefill worker rejects goes on there as a placeholder of one token
  kPlaceholderPrompt,    // a prefill worker computes a placeholder at every position of a prompt
  kFreeAtTimeout,        // a decode worker lets pages go while its own reads into them are out
  kNoStepFence,          // a page returns although a step that was under way may still write into it
  kCoverageByPeer,       // a prompt counts as covered when everything is there that the peer announced
  kStaleAttempt,         // messages of an earlier attempt are taken for the present one's
  kStaleGeneration,      // a page counts as a sequence's own in whatever tenure it is
  kCrossDomainKey,       // all domains share one key
  kPinDroppedEarly,      // a prefill worker lets pages go once they are announced
  kIdentityFromRequest,  // a page is named by the tokens that were asked for, not by those that were computed
  kNoZeroing,            // a page returns to the free list as it was left
  // Checks and counts that are not made.
  kContextNotJudged,     // a gateway passes on prompts that are longer than the context it advertises
  kPeerNotJudged,        // decode asks a prefill worker for more than that worker can hold
  kRowsNotCompared,      // what a step computed is not compared with what its sequences asked for
  kIdentityNotChecked,   // a page that is announced or arrives may be that of other tokens
  kChecksumNotChecked,   // a page that arrives may hold other bytes than it was sealed with
  kRestNotChecked,       // a page that arrives may hold something behind its last token
  kNoSealChecksum,       // a page is sealed without a look at its bytes
  kAdoptedNotCompared,   // the engine does not ask whose tokens its adopted pages name
  kContentNotChecked,    // layer 0 of adopted pages is not computed again
  kCoverageNotCounted,   // the engine takes a prompt for covered without counting its pages
  kStatesNotCompared,    // a step does not ask whether its pages were ever filled
  kTransfersNotCounted,  // a page returns although a read into it is out
  kTagsNotCompared,      // a step does not look at the tags of its pages
  // More wrong behaviours, of the kind that a protocol of its own would have.
  kEndIsSuccess,      // a stream that ends well counts as a prompt that is covered
  kWindowBelowPage,   // a window that is smaller than a page admits none
  kSealedTooEarly,    // a page is sealed while its last layer is still being written
  kOneTree,           // all domains share one tree of cached pages
  kPinAfterLookup,    // cached pages that were looked up once are taken later without a second look
  kPinsHeldQueued,    // who waits for pages keeps the cached ones that it found pinned
  kPageByPage,        // a prefill worker reserves a prompt's pages one at a time
  kSecondRead,        // a read that takes long is issued again while the first is out
  kCheckedAtSource,   // the source's bytes are judged and not those that arrived
  kDoneTooEarly,      // a read is done when its first part is there
  kRetrySameAttempt,  // a retry has the attempt of its predecessor
  kTwoStreams,        // a gateway takes tokens of earlier attempts, too
  kStreamNotMatched,  // messages of any stream reach the handoff that runs for their request
  // No fault by itself: the next step is under way before a sequence's last token is known, and computes a row too many.
  kFinishedRowComputes,
};

#ifdef COFFERDAM_FAULTS

inline constexpr std::array<std::string_view, 38> kFaultNames = {"reject-goes-on",
                                                                 "placeholder-prompt",
                                                                 "free-at-timeout",
                                                                 "no-step-fence",
                                                                 "coverage-by-peer",
                                                                 "stale-attempt",
                                                                 "stale-generation",
                                                                 "cross-domain-key",
                                                                 "pin-dropped-early",
                                                                 "identity-from-request",
                                                                 "no-zeroing",
                                                                 "context-not-judged",
                                                                 "peer-not-judged",
                                                                 "rows-not-compared",
                                                                 "identity-not-checked",
                                                                 "checksum-not-checked",
                                                                 "rest-not-checked",
                                                                 "no-seal-checksum",
                                                                 "adopted-not-compared",
                                                                 "content-not-checked",
                                                                 "coverage-not-counted",
                                                                 "states-not-compared",
                                                                 "transfers-not-counted",
                                                                 "tags-not-compared",
                                                                 "end-is-success",
                                                                 "window-below-page",
                                                                 "sealed-too-early",
                                                                 "one-tree",
                                                                 "pin-after-lookup",
                                                                 "pins-held-queued",
                                                                 "page-by-page",
                                                                 "second-read",
                                                                 "checked-at-source",
                                                                 "done-too-early",
                                                                 "retry-same-attempt",
                                                                 "two-streams",
                                                                 "stream-not-matched",
                                                                 "finished-row-computes"};

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
