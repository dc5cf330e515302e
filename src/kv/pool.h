// The pool of physical pages of one worker: who owns which page, in which tenure, and when it may be used again.
//
// Life of a page:
//
//   free ──Reserve──▶ reserved ──MarkFilling──▶ filling ──Seal──▶ sealed
//     ▲                   │  └──Adopt (verified bytes of a peer)──────▲│ ◀─MarkUsed, MarkCached─▶ cached
//     │                   ▼                                           ▼▼                             │
//     └──Reclaim──── retired ◀────────────── Release ─────────────────┴──────────────────────────────┘
//
// and any owned page ──▶ quarantined. A cached page is a sealed one that nobody reads: only the prefix cache holds it.
//
// Invariants kept here: I2 (one owner, generations never reused), I7 (a released page is free again only after every
// step that could touch it has passed, every transfer count is down, and it has been zeroed), I9 (conservation).
#ifndef COFFERDAM_KV_POOL_H_
#define COFFERDAM_KV_POOL_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/histogram.h"
#include "base/strong_id.h"
#include "kv/layout.h"
#include "kv/seal.h"
#include "kv/zero.h"

namespace cofferdam::kv {

enum class PageState : uint8_t { kFree, kReserved, kFilling, kSealed, kCached, kRetired, kQuarantined };
inline constexpr size_t kPageStates = 7;
std::string_view ToString(PageState state);

// A tenure of one page: the move-only right to use it. Destroying a handle that was not released is a broken
// invariant, since only Pool::Release knows how to fence it.
class PageHandle {
 public:
  PageHandle() = default;
  PageHandle(PageHandle&& other) noexcept { *this = std::move(other); }
  PageHandle& operator=(PageHandle&& other) noexcept;
  PageHandle(const PageHandle&) = delete;
  PageHandle& operator=(const PageHandle&) = delete;
  ~PageHandle();

  bool held() const { return generation_.value() != 0; }
  PageId page() const { return page_; }
  Generation generation() const { return generation_; }

 private:
  friend class Pool;
  PageHandle(PageId page, Generation generation) : page_(page), generation_(generation) {}
  PageId page_;
  Generation generation_;
};

// What stands at both ends of a page in memory (64 bytes, native byte order).
struct PageTag {
  uint64_t magic = 0;
  uint64_t generation = 0;
  uint64_t page = 0;
  uint64_t check = 0;  // of the fields above, keyed by the pool's boot id
  std::array<uint64_t, 4> zero{};

  friend bool operator==(const PageTag&, const PageTag&) = default;
};
static_assert(sizeof(PageTag) == kTagBytes);

// Reuse order. Last-in first-out makes races likelier and is for tests.
enum class ReuseOrder { kFifo, kLifo };

struct PoolCounts {
  std::array<uint64_t, kPageStates> by_state{};
  uint64_t total = 0;
  uint64_t reserved_total = 0;  // reservations ever made, in pages
  uint64_t retired_total = 0;
  uint64_t zeroed_bytes = 0;
  uint64_t usable() const { return total - by_state[static_cast<size_t>(PageState::kQuarantined)]; }
  uint64_t free() const { return by_state[static_cast<size_t>(PageState::kFree)]; }
};

// The right to reserve pages: only admission makes it (I1). It names how many pages the request was admitted for.
class Admitted {
 public:
  Admitted(Admitted&&) = default;
  Admitted& operator=(Admitted&&) = default;
  Admitted(const Admitted&) = delete;
  Admitted& operator=(const Admitted&) = delete;
  uint64_t pages() const { return pages_; }

 private:
  friend class Admission;
  explicit Admitted(uint64_t pages) : pages_(pages) {}
  uint64_t pages_;
};

// One thread (the engine's) calls everything here. The payload bytes of a page belong to whoever its state names:
// the compute threads while filling, the fabric's reader while reserved with a transfer count, readers once sealed.
class Pool {
 public:
  // `memory` holds `pages` pages of the layout, zeroed, is not owned and outlives the pool. `boot_id` is random.
  Pool(const Layout& layout, std::span<std::byte> memory, uint64_t boot_id, ReuseOrder order);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const Layout& layout() const { return layout_; }
  uint64_t boot_id() const { return boot_id_; }
  uint64_t total_pages() const { return pages_.size(); }

  // All of `admitted.pages()` pages or none: returns none when fewer are free. Writes both tags of each. The admission
  // is used up: it reserves once.
  [[nodiscard]] std::optional<std::vector<PageHandle>> Reserve(Admitted admitted);

  // reserved → filling: the engine computes into it from now on.
  void MarkFilling(const PageHandle& handle);
  // filling → sealed. The identity is the caller's, from the tokens that the step fed. Returns the seal.
  Seal SealPage(const PageHandle& handle, const Digest128& identity, uint32_t tokens);
  // reserved → sealed, or → filling for a partial page that this worker goes on filling: the bytes of a peer, already
  // verified. Checks the tenure and both tags again; returns DataLoss when they are wrong: the caller quarantines the page.
  absl::Status Adopt(const PageHandle& handle, const Verified& verified);

  // sealed → cached and back: whether somebody uses a page of the prefix cache.
  void MarkCached(const PageHandle& handle);
  void MarkUsed(const PageHandle& handle);

  // A read into (or out of) the page is outstanding; a held page does not return before the count is zero.
  void HoldForTransfer(const PageHandle& handle);
  void EndTransfer(PageId page, Generation generation);

  // Ends the tenure: the page is retired until `epoch` has passed and its transfers have ended.
  void Release(PageHandle handle, StepEpoch epoch);
  // Ends the tenure for a page whose tag or generation was wrong. It counts as lost capacity.
  void Quarantine(PageHandle handle);
  // Zeroes and frees every retired page that no step after `passed` and no transfer can touch. Called on every turn
  // of the engine's loop, with or without work. Returns how many pages it freed. With a zeroer, what it has zeroed since the
  // last call is freed, and what is ready now is given to it.
  size_t Reclaim(StepEpoch passed);
  // From now on pages are zeroed there. Not owned; outlives the pool's last Reclaim, and is gone before the memory is.
  void ZeroWith(Zeroer* zeroer) { zeroer_ = zeroer; }
  // From a page's release to its return to the free list.
  const SecondsHistogram& deferred_release() const { return deferred_release_; }

  // True when the pool's generation, both tags in memory and `generation` agree (I6). Any thread may call it for
  // a page that it holds.
  [[nodiscard]] bool TagsMatch(PageId page, Generation generation) const;

  // Asks for what TagsMatch will look at: three lines of memory that nothing else has touched lately.
  void PrefetchTags(PageId page) const {
    __builtin_prefetch(&pages_[page.value()]);
    __builtin_prefetch(Base(page));
    __builtin_prefetch(Base(page) + layout_.page_bytes() - kTagBytes);
  }

  // What the head tag in memory says, whether it is right or not: for the record of a failed check.
  Generation GenerationInMemory(PageId page) const;

  std::span<std::byte> Payload(PageId page);
  std::span<const std::byte> Payload(PageId page) const;
  size_t PayloadOffset(PageId page) const { return page.value() * layout_.page_bytes() + kTagBytes; }
  PageState StateOf(PageId page) const { return pages_[page.value()].state; }
  Generation GenerationOf(PageId page) const { return pages_[page.value()].generation; }
  // Sealed and cached pages only.
  const Seal& SealOf(const PageHandle& handle) const;
  // Of a sealed page, as they were when it was sealed or verified: [layout().runs()]. Stays where it is while the page is sealed.
  std::span<const uint64_t> RunChecksumsOf(const PageHandle& handle) const;
  // Whether a sealed page's bytes are still those that were sealed.
  [[nodiscard]] bool PayloadMatches(const PageHandle& handle) const;
  const PoolCounts& counts() const { return counts_; }

  // I9, recounted from the pages themselves. O(pages); production asserts the running counts after every event.
  void CheckConservation() const;

 private:
  struct PageRecord {
    Generation generation;
    PageState state = PageState::kFree;
    uint32_t transfers = 0;
    StepEpoch retired_in;
    std::chrono::steady_clock::time_point retired_at;
    Seal seal;
  };

  PageRecord& Owned(const PageHandle& handle);
  const PageRecord& Owned(const PageHandle& handle) const;
  void Move(PageRecord& record, PageState to);
  std::span<uint64_t> SumsOf(PageId page) { return std::span(run_sums_).subspan(page.value() * layout_.runs(), layout_.runs()); }
  void WriteTags(PageId page, Generation generation);
  PageTag TagFor(PageId page, Generation generation) const;
  std::span<std::byte> Whole(PageId page) const { return {Base(page), layout_.page_bytes()}; }
  void Free(PageId page);
  std::byte* Base(PageId page) const { return memory_.data() + page.value() * layout_.page_bytes(); }

  const Layout layout_;
  const std::span<std::byte> memory_;
  const uint64_t boot_id_;
  const ReuseOrder order_;
  std::vector<PageRecord> pages_;
  std::vector<uint64_t> run_sums_;  // [pages][runs]
  std::deque<PageId> free_;
  std::deque<PageId> retired_;
  uint64_t zeroing_ = 0;  // retired pages that the zeroer has
  Zeroer* zeroer_ = nullptr;
  SecondsHistogram deferred_release_;
  uint64_t next_generation_ = 1;
  PoolCounts counts_;
};

}  // namespace cofferdam::kv

#endif  // COFFERDAM_KV_POOL_H_
