#include "kv/seal.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/faults.h"
#include "kv/zero.h"

namespace cofferdam::kv {
namespace {

// Calls `visit(offset, bytes)` for every run of the payload that lies past the first `tokens` slots, padding included.
template <typename Visit>
void ForEachRunBeyond(const Layout& layout, uint32_t tokens, Visit visit) {
  const LayoutSpec& spec = layout.spec();
  constexpr size_t kElementBytes = 2;
  const uint32_t in_block = tokens % kTokenBlock;
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    for (uint32_t head = 0; head < spec.kv_heads; ++head) {
      const size_t k = layout.KOffset(layer, head), v = layout.VOffset(layer, head);
      const uint32_t first_empty_block = (tokens + kTokenBlock - 1) / kTokenBlock;
      if (in_block != 0) {
        for (uint32_t dim = 0; dim < spec.head_size_k; ++dim) {
          visit(k + layout.KElement(tokens, dim) * kElementBytes, (kTokenBlock - in_block) * kElementBytes);
        }
      }
      const size_t k_used = size_t{first_empty_block} * kTokenBlock * spec.head_size_k * kElementBytes;
      visit(k + k_used, v - k - k_used);
      const size_t v_used = size_t{tokens} * spec.head_size_v * kElementBytes;
      visit(v + v_used, size_t{spec.page_tokens - tokens} * spec.head_size_v * kElementBytes);
    }
  }
  const size_t used = layout.KOffset(spec.layers, 0);
  visit(used, layout.payload_bytes() - used);
}

}  // namespace

IdentityChain::IdentityChain(const Key& domain_key, const Layout& layout) : key_(domain_key) {
  KeyedHasher hasher(key_, "cofferdam identity root v1");
  hasher.AddField(layout.id());
  head_ = hasher.Finish();
}

Digest128 IdentityChain::Append(std::span<const TokenId> tokens) {
  CD_CHECK(!tokens.empty(), "a page that is named holds a token");
  KeyedHasher hasher(key_, "cofferdam identity v1");
  hasher.AddField(head_);
  hasher.AddField(std::string_view(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()));
  head_ = hasher.Finish();
  return head_;
}

std::vector<Digest128> PageIdentities(const Key& domain_key, const Layout& layout, std::span<const TokenId> tokens) {
  IdentityChain chain(domain_key, layout);
  std::vector<Digest128> identities;
  identities.reserve(layout.PagesFor(tokens.size()));
  while (!tokens.empty()) {
    const size_t count = std::min<size_t>(tokens.size(), layout.page_tokens());
    identities.push_back(chain.Append(tokens.first(count)));
    tokens = tokens.subspan(count);
  }
  return identities;
}

void ZeroBeyond(const Layout& layout, std::span<std::byte> payload, uint32_t tokens) {
  CD_CHECK(payload.size() == layout.payload_bytes() && tokens <= layout.page_tokens(), "a payload has its layout's size");
  ForEachRunBeyond(layout, tokens, [&](size_t offset, size_t bytes) { std::memset(payload.data() + offset, 0, bytes); });
}

bool IsZeroBeyond(const Layout& layout, std::span<const std::byte> payload, uint32_t tokens) {
  CD_CHECK(payload.size() == layout.payload_bytes() && tokens <= layout.page_tokens(), "a payload has its layout's size");
  bool zero = true;
  ForEachRunBeyond(layout, tokens, [&](size_t offset, size_t bytes) { zero = zero && IsZero(payload.subspan(offset, bytes)); });
  return zero;
}

std::string_view ToString(SealFault fault) {
  switch (fault) {
    case SealFault::kWrongLayout:
      return "wrong_layout";
    case SealFault::kWrongIdentity:
      return "wrong_identity";
    case SealFault::kWrongCount:
      return "wrong_count";
    case SealFault::kWrongChecksum:
      return "wrong_checksum";
    case SealFault::kNotZeroBeyond:
      return "not_zero_beyond";
  }
  return "unknown";
}

Arrival VerifyArrived(const Layout& layout, const Arrived& arrived, const Seal& seal, const Digest128& expected_identity,
                      uint32_t expected_tokens) {
  if (seal.layout_id != layout.id()) return SealFault::kWrongLayout;
  if (!FaultIsOn(Fault::kIdentityNotChecked)) {
    if (seal.identity != expected_identity) return SealFault::kWrongIdentity;
    if (seal.tokens != expected_tokens) return SealFault::kWrongCount;
  }
  std::vector<uint64_t> sums(layout.runs());
  RunChecksums(layout, arrived.payload, sums);
  if (!FaultIsOn(Fault::kChecksumNotChecked) && RootChecksum(layout, arrived.payload, sums) != seal.checksum)
    return SealFault::kWrongChecksum;
  if (!FaultIsOn(Fault::kRestNotChecked) && expected_tokens < layout.page_tokens() &&
      !IsZeroBeyond(layout, arrived.payload, expected_tokens)) {
    return SealFault::kNotZeroBeyond;
  }
  return Verified(arrived, seal, std::move(sums));
}

}  // namespace cofferdam::kv
