// Seals: what a full (or a prompt's last, partial) page is, and the chain of identities that names it.
#ifndef COFFERDAM_KV_SEAL_H_
#define COFFERDAM_KV_SEAL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/strong_id.h"
#include "kv/hash.h"
#include "kv/layout.h"

namespace cofferdam::kv {

struct Seal {
  Digest128 identity{};
  uint32_t tokens = 0;  // valid tokens in the page, 1 to page_tokens
  Digest128 layout_id{};
  uint64_t checksum = 0;  // XXH3-64 over the whole payload

  friend bool operator==(const Seal&, const Seal&) = default;
};

// identity(0) = H(domain key, layout id); identity(k+1) = H(domain key, identity(k), the tokens of page k).
// The model and RoPE settings come in with the layout id. One chain follows one sequence; not thread-safe.
class IdentityChain {
 public:
  IdentityChain(const Key& domain_key, const Layout& layout);
  // The identity of the page that holds `tokens` and follows the pages appended so far; advances over it.
  // REQUIRES: 1 to page_tokens tokens; a partial page is the last.
  Digest128 Append(std::span<const TokenId> tokens);

 private:
  Key key_;
  Digest128 head_{};
};

// The identities of all pages of `tokens`, the last one partial where the count says so.
std::vector<Digest128> PageIdentities(const Key& domain_key, const Layout& layout, std::span<const TokenId> tokens);

uint64_t PayloadChecksum(std::span<const std::byte> payload);

// Zeroes what no token of the page's first `tokens` owns. REQUIRES: payload.size() == layout.payload_bytes().
void ZeroBeyond(const Layout& layout, std::span<std::byte> payload, uint32_t tokens);
// True when every position past the first `tokens` is zero: a stale NaN times zero is NaN.
bool IsZeroBeyond(const Layout& layout, std::span<const std::byte> payload, uint32_t tokens);

// Why an arrived page is not what was asked for; kGood is the only one to adopt.
enum class SealVerdict { kGood, kWrongLayout, kWrongIdentity, kWrongCount, kWrongChecksum, kNotZeroBeyond };
std::string_view ToString(SealVerdict verdict);

// Judges the bytes that arrived (never the source's) against the seal, and the seal against what the reader expects.
[[nodiscard]] SealVerdict VerifyArrived(const Layout& layout, std::span<const std::byte> payload, const Seal& seal,
                                        const Digest128& expected_identity, uint32_t expected_tokens);

}  // namespace cofferdam::kv

#endif  // COFFERDAM_KV_SEAL_H_
