// One sequence inside the engine: its tokens, its page table and how far it is covered. Not for use outside src/engine.
#ifndef COFFERDAM_ENGINE_SEQUENCE_H_
#define COFFERDAM_ENGINE_SEQUENCE_H_

#include <chrono>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "engine/engine.h"

namespace cofferdam::engine {

// Adds the time that it lives.
class CheckTimer {
 public:
  explicit CheckTimer(std::chrono::nanoseconds& sum) : sum_(sum) {}
  ~CheckTimer() { sum_ += std::chrono::steady_clock::now() - start_; }
  CheckTimer(const CheckTimer&) = delete;
  CheckTimer& operator=(const CheckTimer&) = delete;

 private:
  std::chrono::nanoseconds& sum_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// One entry of a page table: a page that the sequence owns alone, or one of the prefix cache.
class PageRef {
 public:
  explicit PageRef(kv::PageHandle handle) : ref_(std::move(handle)) {}
  explicit PageRef(kv::PrefixCache::Pin pin) : ref_(std::move(pin)) {}
  const kv::PageHandle& handle() const { return pin() != nullptr ? pin()->handle() : std::get<kv::PageHandle>(ref_); }
  operator const kv::PageHandle&() const { return handle(); }  // NOLINT: the pool asks for nothing else
  PageId page() const { return handle().page(); }
  Generation generation() const { return handle().generation(); }
  // Null: owned alone.
  const kv::PrefixCache::Pin* pin() const { return std::get_if<kv::PrefixCache::Pin>(&ref_); }
  bool bad() const { return pin() != nullptr && pin()->bad(); }
  // Takes the page out; only then may this be destroyed.
  std::variant<kv::PageHandle, kv::PrefixCache::Pin> Take() { return std::move(ref_); }

 private:
  std::variant<kv::PageHandle, kv::PrefixCache::Pin> ref_;
};

enum class SequenceState {
  kWaiting,  // owns its pages; a handoff may be filling them
  kRunning,
  kHeld,  // done computing; its pages are kept for readers until Release
};

struct Engine::Sequence {
  Sequence(SequenceId id_in, SequenceSpec spec_in, const kv::Layout& layout)
      : id(id_in), spec(std::move(spec_in)), tokens(spec.tokens), chain(spec.domain_key, layout) {}

  bool generates() const { return spec.sampling.has_value(); }
  uint64_t covered() const { return fed.size(); }

  const SequenceId id;
  const SequenceSpec spec;
  SequenceState state = SequenceState::kWaiting;

  std::vector<TokenId> tokens;  // prompt and what was generated
  // The token whose K and V lie in each slot: those that steps really fed, and those of adopted pages, whose identity
  // names them. Its length is how far the sequence is covered (I5).
  std::vector<TokenId> fed;
  uint32_t generated = 0;
  bool stalled = false;  // its next row has no page yet

  // The page table: handles in order, and the payload addresses that the executor reads.
  std::vector<PageRef> pages;
  std::vector<std::byte*> payloads;
  std::vector<const uint64_t*> sums;             // run checksums of the sealed pages, [sealed_pages]
  std::vector<std::optional<kv::Seal>> adopted;  // by ordinal
  uint32_t cached_pages = 0;                     // from the start: found in the prefix cache
  std::vector<uint64_t> origins;                 // of the adopted pages behind those: the worker that sent each
  bool may_be_copied = true;                     // nothing of it came from a worker that was found wrong
  uint32_t checked_pages = 0;                    // from the start: CheckAdopted has looked at them
  uint32_t sealed_pages = 0;                     // from the start, without a gap
  kv::IdentityChain chain;                       // stands behind the last sealed page
  std::optional<model::Sampler> sampler;
  kv::CheckCounts checks;  // made for this sequence
};

}  // namespace cofferdam::engine

#endif  // COFFERDAM_ENGINE_SEQUENCE_H_
