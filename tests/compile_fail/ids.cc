// Ids of different kinds do not mix, and a plain number is not an id.
#include "base/strong_id.h"

namespace cofferdam {

PageId page(7);
const Generation generation(7);
bool same_page = page == PageId(7);

#ifdef MUST_FAIL_page_from_generation  // conversion from .*Generation.* to non-scalar type .*PageId|no viable conversion
PageId from_generation = generation;
#endif
#ifdef MUST_FAIL_page_from_number  // conversion from 'int' to non-scalar type .*PageId|no viable conversion
PageId from_number = 7;
#endif
#ifdef MUST_FAIL_page_from_token  // conversion from .*TokenId.* to non-scalar type .*PageId|no viable conversion
const TokenId token = 7;
PageId from_token = token;
#endif
#ifdef MUST_FAIL_token_from_page  // cannot convert .*PageId.* to .*TokenId|no viable conversion
TokenId to_token = page;
#endif
#ifdef MUST_FAIL_sequence_for_a_page  // could not convert .*SequenceId.* to .*PageId|no matching function
PageId Next(PageId id) { return PageId(id.value() + 1); }
PageId next = Next(SequenceId(7));
#endif
#ifdef MUST_FAIL_page_is_no_generation  // no match for 'operator=='|invalid operands
bool mixed = page == generation;
#endif
#ifdef MUST_FAIL_epoch_before_sequence  // no match for 'operator<'|invalid operands
bool before = StepEpoch(1) < SequenceId(2);
#endif
#ifdef MUST_FAIL_page_assigned  // no match for 'operator='|no viable overloaded '='
void Assign() { page = generation; }
#endif

}  // namespace cofferdam
