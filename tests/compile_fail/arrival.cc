// I4: what arrived is judged, the judgement is looked at, and the handoff hears
// of no read without one.
#include "handoff/decode_handoff.h"

namespace cofferdam::handoff {

kv::Arrival Judge(const kv::Layout& layout, const kv::Arrived& at, const IssueRead& read) {
  return kv::VerifyArrived(layout, at, read.page.seal, read.expected_identity, read.expected_tokens);
}
void Done(DecodeHandoff& handoff, const kv::Arrival& arrival, DecodeActions& actions) { handoff.OnReadDone(0, arrival, actions); }

#ifdef MUST_FAIL_verdict_ignored  // ignoring return(ed)? value .*(VerifyArrived|variant)
void VerdictIgnored(const kv::Layout& layout, const kv::Arrived& at, const IssueRead& read) {
  kv::VerifyArrived(layout, at, read.page.seal, read.expected_identity, read.expected_tokens);
}
#endif
#ifdef MUST_FAIL_verdict_is_no_truth  // could not convert .* to 'bool'|not contextually convertible
int VerdictIsNoTruth(const kv::Arrival& arrival) {
  if (arrival) return 1;
  return 0;
}
#endif
#ifdef MUST_FAIL_truth_is_no_verdict  // cannot convert 'bool' to|no known conversion|cannot initialize|invalid initialization
void TruthIsNoVerdict(DecodeHandoff& handoff, DecodeActions& actions) { handoff.OnReadDone(0, true, actions); }
#endif
#ifdef MUST_FAIL_verified_by_hand  // is private within this context|private constructor
kv::Verified VerifiedByHand(const kv::Arrived& at, const kv::Seal& seal) { return kv::Verified(at, seal, {}); }
#endif
#ifdef MUST_FAIL_verified_out_of_nothing  // could not convert|no matching function|no default constructor|no matching constructor
kv::Verified VerifiedOutOfNothing() { return {}; }
#endif
#ifdef MUST_FAIL_verified_moved_to_another_page  // is private within this context|private member
void VerifiedMovedToAnotherPage(kv::Verified& verified) { verified.page_ = PageId(9); }
#endif
#ifdef MUST_FAIL_read_done_without_verdict  // no matching function|too few arguments
void ReadDoneWithoutVerdict(DecodeHandoff& handoff, DecodeActions& actions) { handoff.OnReadDone(0, actions); }
#endif
#ifdef MUST_FAIL_message_without_attempt  // no matching function|no known conversion|cannot convert|could not convert
void MessageWithoutAttempt(DecodeHandoff& handoff, Time now, DecodeActions& actions) { handoff.OnAdmitted(now, actions); }
#endif
#ifdef MUST_FAIL_handoff_copied  // use of deleted function|deleted constructor
DecodeHandoff HandoffCopied(const DecodeHandoff& handoff) { return handoff; }
#endif
#ifdef MUST_FAIL_window_ignored  // ignoring return value .*TryTake
void WindowIgnored(TransferWindow& window, TransferWindow::Share& share) { window.TryTake(share, 64); }
#endif
#ifdef MUST_FAIL_window_share_forged  // is private within this context|private member
void WindowShareForged(TransferWindow::Share& share) { share.held_bytes_ = 64; }
#endif

}  // namespace cofferdam::handoff
