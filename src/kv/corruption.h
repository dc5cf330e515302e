// Faults that are put in on purpose: their kinds, and how each spoils the bytes of a page.
//
// For tests, and for what only builds with COFFERDAM_FAULTS compile. Nothing that serves includes it.
#ifndef COFFERDAM_KV_CORRUPTION_H_
#define COFFERDAM_KV_CORRUPTION_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string_view>

#include "kv/layout.h"

namespace cofferdam::kv {

enum class FaultKind : uint8_t {
  // In the memory of a page that a sequence owns.
  kWrongOwner,   // the page is overwritten, tags and all, by that of another sequence
  kSwap,         // two sequences' pages change places
  kStalePage,    // the page holds what an earlier tenure left there, its tags included
  kOverrun,      // a write that runs over the page's edge
  kTagFlip,      // one bit of a tag
  kSealedFlip,   // one bit of the payload of a sealed page
  kFillingFlip,  // one bit of a slot that was written, of a page that is still being filled
  // On the way from a peer.
  kArrivalFlip,   // one bit
  kArrivalTorn,   // the copy ended half way
  kArrivalSwap,   // two pages of the prompt change places
  kArrivalOther,  // the page at this place of another prompt, with that page's own seal
  kArrivalStale,  // the seal is right, the bytes are those of another prompt
};
inline constexpr size_t kFaultKinds = 12;
inline constexpr std::array<std::string_view, kFaultKinds> kFaultKindNames = {
    "wrong-owner",  "swap",         "stale-page",   "overrun",      "tag-flip",      "sealed-flip",
    "filling-flip", "arrival-flip", "arrival-torn", "arrival-swap", "arrival-other", "arrival-stale"};
constexpr bool IsInMemory(FaultKind kind) { return kind < FaultKind::kArrivalFlip; }

using Random = std::mt19937_64;
inline uint64_t Draw(Random& random, uint64_t below) { return random() % below; }

inline void FlipBit(std::span<std::byte> bytes, Random& random) {
  const size_t at = Draw(random, bytes.size());
  bytes[at] ^= static_cast<std::byte>(1U << Draw(random, 8));
}

// `page` is one with its tags.
inline void FlipTagBit(std::span<std::byte> page, Random& random) {
  FlipBit(Draw(random, 2) == 0 ? page.first(kTagBytes) : page.last(kTagBytes), random);
}

// The last bytes of the payload and some of the tag behind it, or the first ones and some of the tag before it.
inline void WriteOverEdge(std::span<std::byte> page, Random& random) {
  constexpr size_t kInside = 8;
  const size_t beyond = 1 + Draw(random, kTagBytes);
  const bool tail = Draw(random, 2) == 0;
  const auto written =
      tail ? page.subspan(page.size() - kTagBytes - kInside, kInside + beyond) : page.subspan(kTagBytes - beyond, beyond + kInside);
  for (std::byte& byte : written) byte ^= static_cast<std::byte>(1 + Draw(random, 255));
}

// One bit of K or V of one of the payload's first `slots` tokens.
inline void FlipWrittenBit(const Layout& layout, std::span<std::byte> payload, uint32_t slots, Random& random) {
  const auto slot = static_cast<uint32_t>(Draw(random, slots));
  const auto layer = static_cast<uint32_t>(Draw(random, layout.spec().layers));
  const auto head = static_cast<uint32_t>(Draw(random, layout.spec().kv_heads));
  const bool in_k = Draw(random, 2) == 0;
  const auto dim = static_cast<uint32_t>(Draw(random, in_k ? layout.spec().head_size_k : layout.spec().head_size_v));
  const size_t at = in_k ? layout.KOffset(layer, head) + 2 * layout.KElement(slot, dim)
                         : layout.VOffset(layer, head) + 2 * layout.VElement(slot, dim);
  FlipBit(payload.subspan(at, 2), random);
}

inline void TearCopy(std::span<std::byte> payload) { std::ranges::fill(payload.subspan(payload.size() / 2), std::byte{0}); }

}  // namespace cofferdam::kv

#endif  // COFFERDAM_KV_CORRUPTION_H_
