// Seals: what a full (or a prompt's last, partial) page is, and the chain of identities that names it.
#ifndef COFFERDAM_KV_SEAL_H_
#define COFFERDAM_KV_SEAL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/strong_id.h"
#include "kv/hash.h"
#include "kv/layout.h"

namespace cofferdam::kv {

struct Seal {
  Digest128 identity{};
  uint32_t tokens = 0;  // valid tokens in the page, 1 to page_tokens
  Digest128 layout_id{};
  uint64_t checksum = 0;  // PayloadChecksum

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

// The checksum of a payload has two levels: that of every run (one layer and head), and one over those, seeded with that of the
// padding. So a read can check the runs that it reads, while they are in the cache. What it is made of stands in checksum.cc; it
// is for faults, not for forgers.
uint64_t RunChecksum(std::span<const std::byte> run);
// What makes the rounds of AES: their definition, the processor's instruction, or its instruction for four blocks. Later is faster.
enum class ChecksumKernel : uint8_t { kPlain, kAes, kVaes };
// What the choice depends on; on other than x86-64 nothing is there.
struct ProcessorFeatures {
  bool aes = false, sse41 = false, vaes = false, avx512f = false;
};
ProcessorFeatures ThisProcessor();
// The fastest that runs on such a processor, whatever the build was made for.
ChecksumKernel BestChecksumKernel(const ProcessorFeatures& has);
// All give the same. REQUIRES: `kernel` is no later than BestChecksumKernel(ThisProcessor()).
uint64_t RunChecksumBy(ChecksumKernel kernel, std::span<const std::byte> run);
// REQUIRES: payload.size() == layout.payload_bytes(), sums.size() == layout.runs().
void RunChecksums(const Layout& layout, std::span<const std::byte> payload, std::span<uint64_t> sums);
uint64_t RootChecksum(const Layout& layout, std::span<const std::byte> payload, std::span<const uint64_t> sums);
uint64_t PayloadChecksum(const Layout& layout, std::span<const std::byte> payload);

// Zeroes what no token of the page's first `tokens` owns. REQUIRES: payload.size() == layout.payload_bytes().
void ZeroBeyond(const Layout& layout, std::span<std::byte> payload, uint32_t tokens);
// True when every position past the first `tokens` is zero: a stale NaN times zero is NaN.
bool IsZeroBeyond(const Layout& layout, std::span<const std::byte> payload, uint32_t tokens);

// Where a peer's bytes have come to lie: the reader's own page, in the tenure it was read for.
struct Arrived {
  PageId page;
  Generation generation;
  std::span<const std::byte> payload;
};

// Why an arrived page is not what was asked for.
enum class SealFault { kWrongLayout, kWrongIdentity, kWrongCount, kWrongChecksum, kNotZeroBeyond };
std::string_view ToString(SealFault fault);

class Verified;
using Arrival = std::variant<Verified, SealFault>;

// Judges the bytes that arrived (never the source's) against the seal, and the seal against what the reader expects.
[[nodiscard]] Arrival VerifyArrived(const Layout& layout, const Arrived& arrived, const Seal& seal,
                                    const Digest128& expected_identity, uint32_t expected_tokens);

// The right to adopt one page in one tenure (I4): VerifyArrived alone makes it, from the bytes that lie there.
class Verified {
 public:
  PageId page() const { return page_; }
  Generation generation() const { return generation_; }
  const Seal& seal() const { return seal_; }
  std::span<const uint64_t> run_checksums() const { return sums_; }

 private:
  friend Arrival VerifyArrived(const Layout&, const Arrived&, const Seal&, const Digest128&, uint32_t);
  Verified(const Arrived& arrived, const Seal& seal, std::vector<uint64_t> sums)
      : page_(arrived.page), generation_(arrived.generation), seal_(seal), sums_(std::move(sums)) {}
  PageId page_;
  Generation generation_;
  Seal seal_;
  std::vector<uint64_t> sums_;
};

}  // namespace cofferdam::kv

#endif  // COFFERDAM_KV_SEAL_H_
