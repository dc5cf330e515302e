#include "kv/corruption.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <vector>

#include "kv/seal.h"

namespace cofferdam::kv {
namespace {

// Each fault is drawn this often, so that every side of every choice in it comes up.
constexpr int kDraws = 500;

class CorruptionTest : public testing::Test {
 protected:
  // The places at which the page differs from one of zeros.
  std::vector<size_t> Changed() const {
    std::vector<size_t> places;
    for (size_t i = 0; i < page_.size(); ++i) {
      if (page_[i] != std::byte{0}) places.push_back(i);
    }
    return places;
  }
  void Clear() { std::ranges::fill(page_, std::byte{0}); }
  std::span<std::byte> Payload() { return std::span(page_).subspan(kTagBytes, layout_.payload_bytes()); }
  bool InTag(size_t at) const { return at < kTagBytes || at >= page_.size() - kTagBytes; }

  Layout layout_ = *Layout::Make(
      {.model_hash = "m", .rope_settings = "", .layers = 2, .kv_heads = 2, .head_size_k = 8, .head_size_v = 8, .page_tokens = 32});
  std::vector<std::byte> page_ = std::vector<std::byte>(layout_.page_bytes());
  Random random_{7};
};

TEST_F(CorruptionTest, AFlippedBitOfATagIsOneBitOfEitherTag) {
  std::set<bool> tails;
  for (int i = 0; i < kDraws; ++i, Clear()) {
    FlipTagBit(page_, random_);
    const std::vector<size_t> changed = Changed();
    ASSERT_EQ(changed.size(), 1u);
    ASSERT_TRUE(InTag(changed[0]));
    ASSERT_TRUE(std::has_single_bit(static_cast<uint8_t>(page_[changed[0]])));
    tails.insert(changed[0] >= kTagBytes);
  }
  EXPECT_EQ(tails.size(), 2u);
}

TEST_F(CorruptionTest, AnOverrunTouchesPayloadAndTagOfOneEdge) {
  std::set<bool> tails;
  for (int i = 0; i < kDraws; ++i, Clear()) {
    WriteOverEdge(page_, random_);
    const std::vector<size_t> changed = Changed();
    ASSERT_EQ(changed.back() - changed.front() + 1, changed.size()) << "one write";
    ASSERT_NE(InTag(changed.front()), InTag(changed.back()));
    tails.insert(InTag(changed.back()));
  }
  EXPECT_EQ(tails.size(), 2u);
}

TEST_F(CorruptionTest, AFlippedBitOfWhatWasWrittenIsInOneOfThoseTokens) {
  for (const uint32_t slots : {1u, 5u, 32u}) {
    std::set<size_t> seen;
    for (int i = 0; i < kDraws; ++i, Clear()) {
      FlipWrittenBit(layout_, Payload(), slots, random_);
      const std::vector<size_t> changed = Changed();
      ASSERT_EQ(changed.size(), 1u);
      ASSERT_FALSE(InTag(changed[0]));
      seen.insert(changed[0]);
      ZeroBeyond(layout_, Payload(), slots);
      ASSERT_EQ(Changed().size(), 1u) << "what is past the tokens is not touched";
    }
    EXPECT_GT(seen.size(), 20u);
  }
}

TEST_F(CorruptionTest, ATornCopyLacksItsSecondHalf) {
  std::ranges::fill(Payload(), std::byte{1});
  TearCopy(Payload());
  EXPECT_EQ(Changed().size(), layout_.payload_bytes() / 2);
  EXPECT_EQ(Changed().back(), kTagBytes + layout_.payload_bytes() / 2 - 1);
}

TEST_F(CorruptionTest, KindsInMemoryAndOnTheWayAreToldApart) {
  size_t in_memory = 0;
  for (size_t i = 0; i < kFaultKinds; ++i) {
    const bool arrives = kFaultKindNames[i].starts_with("arrival-");
    EXPECT_NE(IsInMemory(static_cast<FaultKind>(i)), arrives) << kFaultKindNames[i];
    in_memory += arrives ? 0 : 1;
  }
  EXPECT_EQ(in_memory, 7u);
}

}  // namespace
}  // namespace cofferdam::kv
