// The kinds of integrity checks, and how often each was made and failed.
#ifndef COFFERDAM_KV_CHECKS_H_
#define COFFERDAM_KV_CHECKS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cofferdam::kv {

// What was compared; the unit of a count is one page, once.
enum class CheckKind : uint8_t {
  kTags,     // page table, pool, and the tags at both ends of the page in memory
  kSeal,     // seal and bytes of a page that arrived from a peer
  kPayload,  // bytes of a sealed page that a step read
  kScrub,    // the same, of a page that lies there
  kContent,  // layer 0's K and V of sampled tokens, computed again
  kRows,     // the tokens that a step computed into the page, and those that its sequence asked for
};
inline constexpr size_t kCheckKinds = 6;
inline constexpr std::array<CheckKind, kCheckKinds> kAllCheckKinds = {CheckKind::kTags,  CheckKind::kSeal,    CheckKind::kPayload,
                                                                      CheckKind::kScrub, CheckKind::kContent, CheckKind::kRows};
// "tags", "seal", "payload", "scrub", "content", "rows".
std::string_view ToString(CheckKind kind);

struct CheckCounts {
  struct Count {
    uint64_t made = 0, failed = 0;
  };
  std::array<Count, kCheckKinds> by_kind{};
  Count& operator[](CheckKind kind) { return by_kind[static_cast<size_t>(kind)]; }
  const Count& operator[](CheckKind kind) const { return by_kind[static_cast<size_t>(kind)]; }
  CheckCounts& operator+=(const CheckCounts& other) {
    for (size_t i = 0; i < kCheckKinds; ++i) {
      by_kind[i].made += other.by_kind[i].made;
      by_kind[i].failed += other.by_kind[i].failed;
    }
    return *this;
  }
};

}  // namespace cofferdam::kv

#endif  // COFFERDAM_KV_CHECKS_H_
