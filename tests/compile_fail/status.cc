// Errors are values that nobody can drop by accident.
#include "absl/status/statusor.h"
#include "base/address.h"
#include "base/error.h"
#include "kv/layout.h"

namespace cofferdam {

bool Local(std::string_view address) { return CheckLocalAddress(address).ok(); }

#ifdef MUST_FAIL_status_ignored  // ignoring return(ed)? value
void StatusIgnored(std::string_view address) { CheckLocalAddress(address); }
#endif
#ifdef MUST_FAIL_status_or_ignored  // ignoring return(ed)? value
void StatusOrIgnored() { kv::Layout::Make({}); }
#endif
#ifdef MUST_FAIL_status_is_no_truth  // could not convert .*Status.* to 'bool'|not contextually convertible
int StatusIsNoTruth(std::string_view address) { return CheckLocalAddress(address) ? 1 : 0; }
#endif
#ifdef MUST_FAIL_maybe_used_as_value  // could not convert|conversion from .*StatusOr.* to non-scalar type|no viable conversion
kv::Layout MaybeUsedAsValue() { return kv::Layout::Make({}); }
#endif

}  // namespace cofferdam
