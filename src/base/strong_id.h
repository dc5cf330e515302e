// Strongly typed integers: ids of different kinds do not mix, and a plain integer is not an id.
#ifndef COFFERDAM_BASE_STRONG_ID_H_
#define COFFERDAM_BASE_STRONG_ID_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>
#include <utility>

namespace cofferdam {

template <typename Tag, typename Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << id.value_; }

 private:
  Rep value_{};
};

// Index of a physical page in one worker's pool.
using PageId = StrongId<struct PageIdTag, uint32_t>;
// A page's tenure: counted up at every reservation of any page of a pool, never reused. 0 means "no tenure".
using Generation = StrongId<struct GenerationTag, uint64_t>;
// A sequence inside one engine; never reused within a process.
using SequenceId = StrongId<struct SequenceIdTag, uint64_t>;
// An engine step, counted from 1.
using StepEpoch = StrongId<struct StepEpochTag, uint64_t>;
// A vocabulary entry, as ggml and libllama number them.
using TokenId = int32_t;

}  // namespace cofferdam

template <typename Tag, typename Rep>
struct std::hash<cofferdam::StrongId<Tag, Rep>> {
  size_t operator()(cofferdam::StrongId<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value()); }
};

#endif  // COFFERDAM_BASE_STRONG_ID_H_
