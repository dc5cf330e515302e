#include "sim/mutants.h"

#include <algorithm>

#include "base/check.h"

namespace cofferdam::sim {
namespace {

using enum Fault;

const std::vector<Mutant>& All() {
  static const std::vector<Mutant> all = {
      {"rejected-goes-on", {kRejectGoesOn, kPeerNotJudged, kIdentityNotChecked, kAdoptedNotCompared, kContentNotChecked}},
      {"rejected-goes-on-alone", {kRejectGoesOn, kPeerNotJudged}, false},
      {"peers-length", {kCoverageByPeer, kCoverageNotCounted, kStatesNotCompared}},
      {"peers-length-alone", {kCoverageByPeer}, false},
      {"freed-at-timeout", {kFreeAtTimeout, kTransfersNotCounted}},
      {"freed-at-timeout-alone", {kFreeAtTimeout}, false},
      // Alone: the engine lets a sequence go whose page has wrong tags, while reads into its other pages are out.
      {"freed-under-own-read", {kTransfersNotCounted}},
      {"no-step-fence", {kFinishedRowComputes, kNoStepFence, kTagsNotCompared}},
      {"no-step-fence-alone", {kFinishedRowComputes, kNoStepFence}, false},
      {"stale-generation", {kStaleGeneration, kFinishedRowComputes, kNoStepFence}},
      {"stale-generation-freed", {kStaleGeneration, kFreeAtTimeout, kTransfersNotCounted}},
      {"stale-generation-alone", {kStaleGeneration}, false},
      {"identity-not-checked", {kIdentityNotChecked, kAdoptedNotCompared, kContentNotChecked}},
      {"identity-not-checked-alone", {kIdentityNotChecked}, false},
      {"identity-from-request", {kIdentityFromRequest, kPlaceholderPrompt, kRowsNotCompared, kContentNotChecked}},
      {"placeholder-rows-not-compared", {kPlaceholderPrompt, kRowsNotCompared}, false},
      {"placeholder-alone", {kPlaceholderPrompt}, false},
      {"changed-after-check", {kCheckedAtSource}},
      {"pin-dropped", {kPinDroppedEarly, kChecksumNotChecked, kContentNotChecked}},
      {"pin-dropped-alone", {kPinDroppedEarly}, false},
      {"key-without-domain", {kCrossDomainKey, kOneTree}},
      {"key-without-domain-alone", {kCrossDomainKey}, false},
      {"one-tree-alone", {kOneTree}, false},
      {"done-before-all-parts", {kDoneTooEarly, kChecksumNotChecked, kContentNotChecked}},
      {"done-before-all-parts-checked", {kDoneTooEarly}},  // its rest may reach a page that was let go
      {"pin-after-lookup", {kPinAfterLookup, kAdoptedNotCompared}},
      {"pins-held-while-queued", {kPinsHeldQueued}},
      {"page-by-page", {kPageByPage}},
      {"window-below-a-page", {kWindowBelowPage}},
      {"second-read", {kSecondRead}},
      {"sealed-too-early", {kSealedTooEarly}},
      {"end-is-success", {kEndIsSuccess, kCoverageNotCounted, kStatesNotCompared}},
      {"end-is-success-alone", {kEndIsSuccess}, false},
      {"retry-same-attempt", {kRetrySameAttempt, kStreamNotMatched, kChecksumNotChecked, kContentNotChecked}},
      {"retry-same-attempt-alone", {kRetrySameAttempt, kStreamNotMatched}, false},
      {"stale-attempt", {kStaleAttempt, kIdentityNotChecked, kAdoptedNotCompared, kContentNotChecked}},
      {"stale-attempt-alone", {kStaleAttempt}, false},
      {"two-streams", {kTwoStreams}},
      {"no-checksum", {kChecksumNotChecked, kContentNotChecked}},
      {"no-zeroing", {kNoZeroing, kRestNotChecked}, false},
  };
  return all;
}

}  // namespace

std::span<const Mutant> Mutants() { return All(); }

const Mutant* MutantNamed(std::string_view name) {
  const auto found = std::ranges::find(All(), name, &Mutant::name);
  return found == All().end() ? nullptr : &*found;
}

void Switch(const Mutant* mutant) {
#ifdef COFFERDAM_FAULTS
  for (size_t i = 0; i < kFaultNames.size(); ++i) SetFault(static_cast<Fault>(i), false);
  if (mutant == nullptr) return;
  for (const Fault fault : mutant->switches) SetFault(fault, true);
#else
  CD_CHECK(mutant == nullptr, "there are no mutants in a build without switches (scripts/coverage)");
#endif
}

}  // namespace cofferdam::sim
