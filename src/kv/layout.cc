#include "kv/layout.h"

#include <sodium.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kv/hash.h"

namespace cofferdam::kv {
namespace {

constexpr uint32_t kMaxLayers = 1024, kMaxHeads = 1024, kMaxHeadSize = 1024;

absl::Status CheckCount(const char* name, uint32_t value, uint32_t most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("page layout: ", name, " is ", value, ", must be 1 to ", most));
}

}  // namespace

absl::StatusOr<Layout> Layout::Make(LayoutSpec spec) {
  if (auto s = CheckCount("layers", spec.layers, kMaxLayers); !s.ok()) return s;
  if (auto s = CheckCount("kv_heads", spec.kv_heads, kMaxHeads); !s.ok()) return s;
  if (auto s = CheckCount("head_size_k", spec.head_size_k, kMaxHeadSize); !s.ok()) return s;
  if (auto s = CheckCount("head_size_v", spec.head_size_v, kMaxHeadSize); !s.ok()) return s;
  if (spec.page_tokens < kMinPageTokens || spec.page_tokens > kMaxPageTokens || spec.page_tokens % kTokenBlock != 0) {
    return absl::InvalidArgumentError(absl::StrCat("page size is ", spec.page_tokens, " tokens; it must be a multiple of ",
                                                   kTokenBlock, " from ", kMinPageTokens, " to ", kMaxPageTokens));
  }
  Layout layout;
  constexpr size_t kElementBytes = 2;  // f16
  layout.k_bytes_ = size_t{spec.page_tokens} * spec.head_size_k * kElementBytes;
  layout.head_bytes_ = layout.k_bytes_ + size_t{spec.page_tokens} * spec.head_size_v * kElementBytes;
  layout.layer_bytes_ = layout.head_bytes_ * spec.kv_heads;
  layout.payload_bytes_ = layout.layer_bytes_ * spec.layers;
  static_assert(kMinPageTokens * kElementBytes % 32 == 0, "a (layer, head) run starts at a multiple of 32 bytes");
  // Every (head) run is page_tokens * size * 2 bytes per part, page_tokens a multiple of 16: a multiple of 32; pad the sum to 64.
  layout.payload_bytes_ = (layout.payload_bytes_ + 63) / 64 * 64;
  layout.spec_ = std::move(spec);
  KeyedHasher hasher(Key{}, "cofferdam layout v1");
  hasher.AddField(layout.Describe());
  layout.id_ = hasher.Finish();
  return layout;
}

std::string Layout::Describe() const {
  return absl::StrCat("format=", kFormatVersion, " model=", spec_.model_hash, " rope=[", spec_.rope_settings,
                      "] layers=", spec_.layers, " kv_heads=", spec_.kv_heads, " head_size_k=", spec_.head_size_k,
                      " head_size_v=", spec_.head_size_v, " kv_type=f16 page_tokens=", spec_.page_tokens, " k_block=", kTokenBlock);
}

std::string Hex(const Digest128& digest) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

}  // namespace cofferdam::kv
