// I1: only admission makes the right to reserve pages, and it is used once.
#include "kv/admission.h"

#include <utility>

namespace cofferdam::kv {

AdmissionResult Judge(const Admission& admission, const Pool& pool) { return admission.Admit({.prompt_tokens = 1}, pool.counts()); }
auto ReserveOnce(Pool& pool, Admitted admitted) { return pool.Reserve(std::move(admitted)); }

#ifdef MUST_FAIL_made_by_hand  // is private within this context|private constructor
Admitted MadeByHand(3);
#endif
#ifdef MUST_FAIL_made_from_nothing  // no matching function|no matching constructor
Admitted nothing;
#endif
#ifdef MUST_FAIL_braces  // is private within this context|private constructor|no matching
Admitted Braces() { return Admitted{3}; }
#endif
#ifdef MUST_FAIL_rejected_reserves  // (?s)cannot convert .*Rejected.* to .*Admitted|no known conversion .*Rejected.* to .*Admitted
auto RejectedReserves(Pool& pool, Rejected rejected) { return pool.Reserve(std::move(rejected)); }
#endif
#ifdef MUST_FAIL_waiting_reserves  // (?s)cannot convert .*MustWait.* to .*Admitted|no known conversion .*MustWait.* to .*Admitted
auto WaitingReserves(Pool& pool) { return pool.Reserve(MustWait{}); }
#endif
#ifdef MUST_FAIL_unjudged_result_reserves  // (?s)cannot convert .*to .*Admitted|no known conversion .* to .*Admitted
auto UnjudgedResultReserves(Pool& pool, AdmissionResult result) { return pool.Reserve(std::move(result)); }
#endif
#ifdef MUST_FAIL_number_reserves  // is private within this context|cannot convert|could not convert|no known conversion
auto NumberReserves(Pool& pool) { return pool.Reserve(3); }
#endif
#ifdef MUST_FAIL_reserves_and_keeps_the_right  // use of deleted function|deleted constructor
auto ReservesAndKeepsTheRight(Pool& pool, Admitted& admitted) { return pool.Reserve(admitted); }
#endif
#ifdef MUST_FAIL_right_is_copied  // use of deleted function|deleted constructor
Admitted RightIsCopied(const Admitted& admitted) { return admitted; }
#endif
#ifdef MUST_FAIL_pages_raised  // is private within this context|private member
void PagesRaised(Admitted& admitted) { admitted.pages_ = 1000; }
#endif

}  // namespace cofferdam::kv
