#include "kv/layout.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace cofferdam::kv {
namespace {

LayoutSpec Spec() {
  return {
      .model_hash = "m", .rope_settings = "r", .layers = 3, .kv_heads = 2, .head_size_k = 8, .head_size_v = 24, .page_tokens = 32};
}

TEST(Layout, EveryElementOfAPageHasAPlaceOfItsOwn) {
  const Layout layout = *Layout::Make(Spec());
  std::set<size_t> seen;
  for (uint32_t layer = 0; layer < 3; ++layer) {
    for (uint32_t head = 0; head < 2; ++head) {
      for (uint32_t slot = 0; slot < 32; ++slot) {
        for (uint32_t d = 0; d < 8; ++d) seen.insert(layout.KOffset(layer, head) + 2 * layout.KElement(slot, d));
        for (uint32_t d = 0; d < 24; ++d) seen.insert(layout.VOffset(layer, head) + 2 * layout.VElement(slot, d));
      }
    }
  }
  EXPECT_EQ(seen.size(), 3u * 2 * 32 * (8 + 24));
  EXPECT_LT(*seen.rbegin(), layout.payload_bytes());
  EXPECT_EQ(layout.page_bytes() % 64, 0u);
}

TEST(Layout, EveryFieldChangesTheId) {
  std::set<Digest128> ids{Layout::Make(Spec())->id()};
  for (int field = 0; field < 7; ++field) {
    LayoutSpec spec = Spec();
    switch (field) {
      case 0:
        spec.model_hash = "n";
        break;
      case 1:
        spec.rope_settings = "s";
        break;
      case 2:
        spec.layers = 4;
        break;
      case 3:
        spec.kv_heads = 3;
        break;
      case 4:
        spec.head_size_k = 16;
        break;
      case 5:
        spec.head_size_v = 8;
        break;
      default:
        spec.page_tokens = 64;
        break;
    }
    EXPECT_TRUE(ids.insert(Layout::Make(spec)->id()).second) << "field " << field;
  }
}

TEST(Layout, RefusesWhatNoPageCanHold) {
  for (uint32_t page_tokens : {0u, 8u, 24u, 144u}) {
    LayoutSpec spec = Spec();
    spec.page_tokens = page_tokens;
    EXPECT_EQ(Layout::Make(spec).status().code(), absl::StatusCode::kInvalidArgument) << page_tokens;
  }
  const std::pair<const char*, uint32_t LayoutSpec::*> counts[] = {{"layers", &LayoutSpec::layers},
                                                                   {"kv_heads", &LayoutSpec::kv_heads},
                                                                   {"head_size_k", &LayoutSpec::head_size_k},
                                                                   {"head_size_v", &LayoutSpec::head_size_v}};
  for (const auto& [name, count] : counts) {
    for (const uint32_t wrong : {0u, 1025u, ~0u}) {
      LayoutSpec spec = Spec();
      spec.*count = wrong;
      const absl::Status status = Layout::Make(spec).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name << " " << wrong;
      EXPECT_NE(std::string(status.message()).find(name), std::string::npos) << status.message();
    }
  }
}

}  // namespace
}  // namespace cofferdam::kv
