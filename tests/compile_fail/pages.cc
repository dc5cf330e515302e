// I2: a page has one owner. Its handle comes from the pool alone, moves, and is
// never copied.
#include <utility>

#include "kv/pool.h"

namespace cofferdam::kv {

PageHandle Take(PageHandle&& handle) { return std::move(handle); }
void GiveBack(Pool& pool, PageHandle handle) { pool.Release(std::move(handle), StepEpoch(1)); }

#ifdef MUST_FAIL_made_by_hand  // is private within this context|private constructor
PageHandle MadeByHand(PageId(1), Generation(1));
#endif
#ifdef MUST_FAIL_copied  // use of deleted function|deleted constructor
PageHandle Copied(const PageHandle& handle) { return handle; }
#endif
#ifdef MUST_FAIL_copy_assigned  // use of deleted function|deleted operator|overload resolution selected deleted
void CopyAssigned(PageHandle& to, const PageHandle& from) { to = from; }
#endif
#ifdef MUST_FAIL_tenure_changed  // is private within this context|private member
void TenureChanged(PageHandle& handle) { handle.generation_ = Generation(9); }
#endif
#ifdef MUST_FAIL_released_and_kept  // use of deleted function|deleted constructor
void ReleasedAndKept(Pool& pool, PageHandle& handle) { pool.Release(handle, StepEpoch(1)); }
#endif
#ifdef MUST_FAIL_released_by_number  // no known conversion|could not convert|cannot convert|no viable conversion
void ReleasedByNumber(Pool& pool) { pool.Release(PageId(1), StepEpoch(1)); }
#endif
#ifdef MUST_FAIL_released_without_an_epoch  // no matching function|too few arguments
void ReleasedWithoutAnEpoch(Pool& pool, PageHandle handle) { pool.Release(std::move(handle)); }
#endif
#ifdef MUST_FAIL_quarantined_and_kept  // use of deleted function|deleted constructor
void QuarantinedAndKept(Pool& pool, PageHandle& handle) { pool.Quarantine(handle); }
#endif
#ifdef MUST_FAIL_seal_of_a_page_number  // no known conversion|could not convert|cannot convert|no viable conversion
void SealOfAPageNumber(Pool& pool) { pool.SealPage(PageId(1), {}, 16); }
#endif
#ifdef MUST_FAIL_pool_copied  // use of deleted function|deleted constructor
Pool PoolCopied(const Pool& pool) { return pool; }
#endif
#ifdef MUST_FAIL_tag_check_ignored  // ignoring return value .*TagsMatch
void TagCheckIgnored(const Pool& pool, const PageHandle& handle) { pool.TagsMatch(handle.page(), handle.generation()); }
#endif

}  // namespace cofferdam::kv
