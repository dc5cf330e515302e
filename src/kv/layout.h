// How a page's bytes are laid out, and the id that two workers must share before a page may travel.
#ifndef COFFERDAM_KV_LAYOUT_H_
#define COFFERDAM_KV_LAYOUT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace cofferdam::kv {

using Digest128 = std::array<uint8_t, 16>;

// Bytes of one tag; a tag stands at each end of a page, outside of the payload.
inline constexpr size_t kTagBytes = 64;
// K lies transposed in blocks of this many tokens, so that one vector register holds a dimension of all of them.
inline constexpr uint32_t kTokenBlock = 16;
inline constexpr uint32_t kMinPageTokens = 16;
inline constexpr uint32_t kMaxPageTokens = 128;
inline constexpr uint32_t kFormatVersion = 3;

// What a layout is computed from. All counts are those of the model file.
struct LayoutSpec {
  std::string model_hash;     // hex, of the whole file
  std::string rope_settings;  // any text that names everything that changes K for a given token and position
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_size_k = 0;
  uint32_t head_size_v = 0;
  uint32_t page_tokens = 64;  // a multiple of kTokenBlock, kMinPageTokens to kMaxPageTokens
};

// Immutable after Make. One page (KV type f16, `T` page_tokens, `H` kv_heads, `D` head size):
//
//   [head tag 64 B][layer 0][layer 1] … [layer L-1][tail tag 64 B]
//   layer: for each head h:  K as [T/16][Dk][16] f16, then V as [T][Dv] f16
//
// so everything that one (layer, head) needs is one contiguous run. The page's bytes are padded to a multiple of 64.
class Layout {
 public:
  // Returns InvalidArgument naming the field when a count is zero, too large or page_tokens is not allowed.
  static absl::StatusOr<Layout> Make(LayoutSpec spec);

  const LayoutSpec& spec() const { return spec_; }
  uint32_t page_tokens() const { return spec_.page_tokens; }
  const Digest128& id() const { return id_; }
  // One line that names every input of the id, for refusals.
  std::string Describe() const;

  size_t page_bytes() const { return kTagBytes + payload_bytes_ + kTagBytes; }
  size_t payload_bytes() const { return payload_bytes_; }
  size_t token_bytes() const { return payload_bytes_ / spec_.page_tokens; }
  // Offsets count from the start of the payload, i.e. behind the head tag.
  size_t KOffset(uint32_t layer, uint32_t head) const { return layer * layer_bytes_ + head * head_bytes_; }
  size_t VOffset(uint32_t layer, uint32_t head) const { return KOffset(layer, head) + k_bytes_; }
  // A run is all of one (layer, head); together they are the payload, but for the padding at its end.
  size_t run_bytes() const { return head_bytes_; }
  size_t runs() const { return size_t{spec_.layers} * spec_.kv_heads; }
  // Of one f16 element in a (layer, head)'s run, in elements from KOffset or VOffset.
  size_t KElement(uint32_t slot, uint32_t dim) const {
    return (slot / kTokenBlock * spec_.head_size_k + dim) * kTokenBlock + slot % kTokenBlock;
  }
  size_t VElement(uint32_t slot, uint32_t dim) const { return static_cast<size_t>(slot) * spec_.head_size_v + dim; }

  uint64_t PagesFor(uint64_t tokens) const { return (tokens + spec_.page_tokens - 1) / spec_.page_tokens; }

 private:
  Layout() = default;
  LayoutSpec spec_;
  size_t k_bytes_ = 0, head_bytes_ = 0, layer_bytes_ = 0, payload_bytes_ = 0;
  Digest128 id_{};
};

std::string Hex(const Digest128& digest);

}  // namespace cofferdam::kv

#endif  // COFFERDAM_KV_LAYOUT_H_
