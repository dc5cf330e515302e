#include "kv/pool.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/faults.h"

namespace cofferdam::kv {
namespace {

// A look at every byte of every page handed out; other builds rely on the zeroing that came before.
#ifdef NDEBUG
constexpr bool kCheckZeroedPages = false;
#else
constexpr bool kCheckZeroedPages = true;
#endif

constexpr uint64_t kTagMagic = 0x6d61647265666643ULL;  // "Cfferdam"

}  // namespace

std::string_view ToString(PageState state) {
  switch (state) {
    case PageState::kFree:
      return "free";
    case PageState::kReserved:
      return "reserved";
    case PageState::kFilling:
      return "filling";
    case PageState::kSealed:
      return "sealed";
    case PageState::kCached:
      return "cached";
    case PageState::kRetired:
      return "retired";
    case PageState::kQuarantined:
      return "quarantined";
  }
  return "unknown";
}

PageHandle& PageHandle::operator=(PageHandle&& other) noexcept {
  if (this == &other) return *this;
  CD_CHECK(!held(), "I2: a held page is released, never overwritten");
  page_ = std::exchange(other.page_, PageId());
  generation_ = std::exchange(other.generation_, Generation());
  return *this;
}

PageHandle::~PageHandle() { CD_CHECK(!held(), "I2: a held page is released, never dropped"); }

Pool::Pool(const Layout& layout, std::span<std::byte> memory, uint64_t boot_id, ReuseOrder order)
    : layout_(layout),
      memory_(memory),
      boot_id_(boot_id),
      order_(order),
      pages_(memory.size() / layout.page_bytes()),
      run_sums_(pages_.size() * layout.runs()) {
  CD_CHECK(!pages_.empty(), "a pool holds at least one page");
  for (uint32_t i = 0; i < pages_.size(); ++i) free_.push_back(PageId(i));
  counts_.total = pages_.size();
  counts_.by_state[static_cast<size_t>(PageState::kFree)] = pages_.size();
}

Pool::~Pool() = default;

void Pool::Move(PageRecord& record, PageState to) {
  --counts_.by_state[static_cast<size_t>(record.state)];
  ++counts_.by_state[static_cast<size_t>(to)];
  record.state = to;
  CD_CHECK(std::accumulate(counts_.by_state.begin(), counts_.by_state.end(), uint64_t{0}) == counts_.total,
           "I9: every page is in exactly one state");
}

PageTag Pool::TagFor(PageId page, Generation generation) const {
  PageTag tag{.magic = kTagMagic, .generation = generation.value(), .page = page.value()};
  tag.check = XXH3_64bits_withSeed(&tag, offsetof(PageTag, check), boot_id_);
  return tag;
}

void Pool::WriteTags(PageId page, Generation generation) {
  const PageTag tag = TagFor(page, generation);
  std::memcpy(Base(page), &tag, sizeof tag);
  std::memcpy(Base(page) + layout_.page_bytes() - kTagBytes, &tag, sizeof tag);
}

bool Pool::TagsMatch(PageId page, Generation generation) const {
  if (page.value() >= pages_.size()) return false;
  if (FaultIsOn(Fault::kStaleGeneration)) generation = pages_[page.value()].generation;
  if (generation.value() == 0 || pages_[page.value()].generation != generation) return false;
  const PageTag tag = TagFor(page, generation);
  return std::memcmp(Base(page), &tag, sizeof tag) == 0 &&
         std::memcmp(Base(page) + layout_.page_bytes() - kTagBytes, &tag, sizeof tag) == 0;
}

Generation Pool::GenerationInMemory(PageId page) const {
  PageTag tag;
  std::memcpy(&tag, Base(page), sizeof tag);
  return Generation(tag.generation);
}

std::optional<std::vector<PageHandle>> Pool::Reserve(Admitted admitted) {
  if (admitted.pages() > free_.size()) return std::nullopt;
  std::vector<PageHandle> handles;
  handles.reserve(admitted.pages());
  for (uint64_t i = 0; i < admitted.pages(); ++i) {
    const PageId page = order_ == ReuseOrder::kFifo ? free_.front() : free_.back();
    if (order_ == ReuseOrder::kFifo) {
      free_.pop_front();
    } else {
      free_.pop_back();
    }
    PageRecord& record = pages_[page.value()];
    CD_CHECK(record.state == PageState::kFree && record.transfers == 0, "I7: a page handed out is free and untouched");
    CD_CHECK(!kCheckZeroedPages || IsZero(Whole(page)), "I7: a page handed out is zero");
    record.generation = Generation(next_generation_++);
    Move(record, PageState::kReserved);
    WriteTags(page, record.generation);
    ++counts_.reserved_total;
    handles.push_back(PageHandle(page, record.generation));
  }
  return handles;
}

Pool::PageRecord& Pool::Owned(const PageHandle& handle) {
  CD_CHECK(handle.held() && handle.page().value() < pages_.size(), "a page is named by its holder");
  PageRecord& record = pages_[handle.page().value()];
  CD_CHECK(record.generation == handle.generation(), "I2: the handle's tenure is the page's current one");
  CD_CHECK(record.state != PageState::kFree && record.state != PageState::kRetired,
           "I2: an owned page is neither free nor retired");
  return record;
}

const Pool::PageRecord& Pool::Owned(const PageHandle& handle) const { return const_cast<Pool*>(this)->Owned(handle); }

void Pool::MarkFilling(const PageHandle& handle) {
  PageRecord& record = Owned(handle);
  CD_CHECK(record.state == PageState::kReserved && record.transfers == 0, "a page is filled by one writer");
  Move(record, PageState::kFilling);
}

Seal Pool::SealPage(const PageHandle& handle, const Digest128& identity, uint32_t tokens) {
  PageRecord& record = Owned(handle);
  CD_CHECK(record.state == PageState::kFilling, "a page is sealed once, after it was filled");
  CD_CHECK(tokens >= 1 && tokens <= layout_.page_tokens(), "a sealed page holds 1 to page_tokens tokens");
  const std::span<uint64_t> sums = SumsOf(handle.page());
  if (!FaultIsOn(Fault::kNoSealChecksum)) RunChecksums(layout_, Payload(handle.page()), sums);
  record.seal = Seal{.identity = identity,
                     .tokens = tokens,
                     .layout_id = layout_.id(),
                     .checksum = RootChecksum(layout_, Payload(handle.page()), sums)};
  Move(record, PageState::kSealed);
  return record.seal;
}

absl::Status Pool::Adopt(const PageHandle& handle, const Verified& verified) {
  PageRecord& record = Owned(handle);
  CD_CHECK(verified.page() == handle.page() && verified.generation() == handle.generation(),
           "I4: what was verified is this page in this tenure");
  CD_CHECK(record.state == PageState::kReserved, "I4: a page is adopted once, before anything else was done with it");
  CD_CHECK(record.transfers == 0, "I4: a page is adopted after its read has ended");
  if (!TagsMatch(handle.page(), handle.generation())) {
    return absl::DataLossError(absl::StrCat("page ", handle.page().value(), ": the tags are not those of its tenure"));
  }
  record.seal = verified.seal();
  std::ranges::copy(verified.run_checksums(), SumsOf(handle.page()).begin());
  Move(record, record.seal.tokens == layout_.page_tokens() ? PageState::kSealed : PageState::kFilling);
  return absl::OkStatus();
}

void Pool::MarkCached(const PageHandle& handle) {
  PageRecord& record = Owned(handle);
  CD_CHECK(record.state == PageState::kSealed && record.transfers == 0, "only a sealed page is cached");
  Move(record, PageState::kCached);
}

void Pool::MarkUsed(const PageHandle& handle) {
  PageRecord& record = Owned(handle);
  CD_CHECK(record.state == PageState::kCached, "only a cached page is taken out of the cache");
  Move(record, PageState::kSealed);
}

void Pool::HoldForTransfer(const PageHandle& handle) { ++Owned(handle).transfers; }

void Pool::EndTransfer(PageId page, Generation generation) {
  PageRecord& record = pages_[page.value()];
  if (FaultIsOn(Fault::kTransfersNotCounted) && record.generation != generation) return;
  CD_CHECK(record.generation == generation && record.transfers > 0, "I7: a page keeps its tenure while a transfer holds it");
  --record.transfers;
}

void Pool::Release(PageHandle handle, StepEpoch epoch) {
  PageRecord& record = Owned(handle);
  CD_CHECK(record.state != PageState::kQuarantined, "a quarantined page is not released");
  record.retired_in = epoch;
  record.retired_at = std::chrono::steady_clock::now();
  Move(record, PageState::kRetired);
  ++counts_.retired_total;
  retired_.push_back(handle.page());
  handle.generation_ = Generation();
}

void Pool::Quarantine(PageHandle handle) {
  Move(Owned(handle), PageState::kQuarantined);
  handle.generation_ = Generation();
}

void Pool::Free(PageId page) {
  PageRecord& record = pages_[page.value()];
  CD_CHECK(record.state == PageState::kRetired && record.transfers == 0, "I7: only a retired page becomes free");
  counts_.zeroed_bytes += layout_.page_bytes();
  deferred_release_.Observe(std::chrono::duration<double>(std::chrono::steady_clock::now() - record.retired_at).count());
  record.generation = Generation();
  Move(record, PageState::kFree);
  free_.push_back(page);
}

size_t Pool::Reclaim(StepEpoch passed) {
  size_t freed = 0;
  if (zeroer_ != nullptr && zeroing_ > 0) {
    for (const PageId page : zeroer_->TakeDone()) {
      --zeroing_;
      Free(page);
      ++freed;
    }
  }
  // One pass over what is retired now; a page that is not ready goes to the back.
  for (size_t left = retired_.size(); left > 0; --left) {
    const PageId page = retired_.front();
    retired_.pop_front();
    PageRecord& record = pages_[page.value()];
    CD_CHECK(record.state == PageState::kRetired, "only retired pages wait for reclaim");
    if (FaultIsOn(Fault::kTransfersNotCounted)) record.transfers = 0;
    if ((record.retired_in > passed && !FaultIsOn(Fault::kNoStepFence)) || record.transfers > 0) {
      retired_.push_back(page);
      continue;
    }
    // Tags too: a free page carries none, so a stray reader of one finds no tenure at all.
    if (FaultIsOn(Fault::kNoZeroing)) {
      Free(page);
      ++freed;
      continue;
    }
    if (zeroer_ != nullptr) {
      zeroer_->Submit(page, Whole(page));
      ++zeroing_;
      continue;
    }
    ZeroBytes(Whole(page));
    Free(page);
    ++freed;
  }
  return freed;
}

std::span<std::byte> Pool::Payload(PageId page) { return {Base(page) + kTagBytes, layout_.payload_bytes()}; }
std::span<const std::byte> Pool::Payload(PageId page) const { return {Base(page) + kTagBytes, layout_.payload_bytes()}; }

const Seal& Pool::SealOf(const PageHandle& handle) const {
  const PageRecord& record = Owned(handle);
  CD_CHECK(record.state == PageState::kSealed || record.state == PageState::kCached, "only a sealed page has a seal");
  return record.seal;
}

std::span<const uint64_t> Pool::RunChecksumsOf(const PageHandle& handle) const {
  CD_CHECK(Owned(handle).state == PageState::kSealed, "only a sealed page has checksums");
  return const_cast<Pool*>(this)->SumsOf(handle.page());
}

bool Pool::PayloadMatches(const PageHandle& handle) const {
  std::vector<uint64_t> sums(layout_.runs());
  RunChecksums(layout_, Payload(handle.page()), sums);
  return RootChecksum(layout_, Payload(handle.page()), sums) == SealOf(handle).checksum;
}

void Pool::CheckConservation() const {
  std::array<uint64_t, kPageStates> found{};
  for (const PageRecord& record : pages_) ++found[static_cast<size_t>(record.state)];
  CD_CHECK(found == counts_.by_state, "I9: the running counts are those of the pages");
  CD_CHECK(found[static_cast<size_t>(PageState::kFree)] == free_.size(), "I9: the free list holds every free page");
  CD_CHECK(found[static_cast<size_t>(PageState::kRetired)] == retired_.size() + zeroing_,
           "I9: the retired list holds every retired page");
}

}  // namespace cofferdam::kv
