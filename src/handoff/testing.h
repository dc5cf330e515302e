// What the tests of both machines share.
#ifndef COFFERDAM_HANDOFF_TESTING_H_
#define COFFERDAM_HANDOFF_TESTING_H_

#include <algorithm>
#include <chrono>
#include <variant>
#include <vector>

#include "handoff/types.h"

namespace cofferdam::handoff::testing {

using std::chrono::milliseconds;

inline constexpr uint32_t kPageTokens = 16;
inline constexpr size_t kPageBytes = 1000;
inline constexpr AttemptId kAttempt{.boot_id = 7, .counter = 2};
inline constexpr AttemptId kEarlier{.boot_id = 7, .counter = 1};

inline kv::Digest128 Identity(uint32_t ordinal) {
  kv::Digest128 digest{};
  digest[0] = static_cast<uint8_t>(ordinal + 1);
  digest[1] = static_cast<uint8_t>(ordinal >> 8);
  return digest;
}
// A layout whose pages are small; every page of these tests holds zeros.
inline const kv::Layout& SmallLayout() {
  static const kv::Layout layout = *kv::Layout::Make({.model_hash = "test",
                                                      .rope_settings = "",
                                                      .layers = 1,
                                                      .kv_heads = 1,
                                                      .head_size_k = 2,
                                                      .head_size_v = 2,
                                                      .page_tokens = kPageTokens});
  return layout;
}
inline std::span<std::byte> Zeros() {
  static std::vector<std::byte> zeros(SmallLayout().payload_bytes());
  return zeros;
}
inline kv::Digest128 LayoutId() { return SmallLayout().id(); }
inline std::vector<kv::Digest128> Identities(uint32_t pages) {
  std::vector<kv::Digest128> identities;
  for (uint32_t i = 0; i < pages; ++i) identities.push_back(Identity(i));
  return identities;
}

// Page `ordinal` of a prompt of `tokens` tokens, as an honest prefill worker announces it.
inline AnnouncedPage Page(uint32_t ordinal, uint64_t tokens) {
  const auto held = static_cast<uint32_t>(std::min<uint64_t>(kPageTokens, tokens - uint64_t{ordinal} * kPageTokens));
  return {.ordinal = ordinal,
          .source = {.region = 5, .offset = ordinal * kPageBytes, .generation = 100 + ordinal},
          .seal = {.identity = Identity(ordinal),
                   .tokens = held,
                   .layout_id = LayoutId(),
                   .checksum = kv::PayloadChecksum(SmallLayout(), Zeros())}};
}

// What a reader finds when the bytes of that page arrive as they were sealed.
inline kv::Arrival Good(uint32_t ordinal, uint64_t tokens) {
  const kv::Seal seal = Page(ordinal, tokens).seal;
  return kv::VerifyArrived(SmallLayout(), {.page = PageId(ordinal), .generation = Generation(1), .payload = Zeros()}, seal,
                           seal.identity, seal.tokens);
}

template <typename Wanted, typename Actions>
size_t Count(const Actions& actions) {
  return static_cast<size_t>(
      std::count_if(actions.begin(), actions.end(), [](const auto& a) { return std::holds_alternative<Wanted>(a); }));
}
template <typename Wanted, typename Actions>
const Wanted* Find(const Actions& actions) {
  for (const auto& action : actions) {
    if (const auto* found = std::get_if<Wanted>(&action)) return found;
  }
  return nullptr;
}

}  // namespace cofferdam::handoff::testing

#endif  // COFFERDAM_HANDOFF_TESTING_H_
