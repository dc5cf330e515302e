#include "kv/seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace cofferdam::kv {
namespace {

class SealTest : public testing::Test {
 protected:
  SealTest() : payload_(layout_.payload_bytes()), tokens_(40) {
    std::mt19937 random(1);
    for (auto& byte : payload_) byte = static_cast<std::byte>(random() | 1U);
    for (auto& token : tokens_) token = static_cast<TokenId>(random() % 1000);
    identity_ = PageIdentities(key_, layout_, tokens_)[1];
    ZeroBeyond(layout_, payload_, 8);
    seal_ = {.identity = identity_, .tokens = 8, .layout_id = layout_.id(), .checksum = PayloadChecksum(layout_, payload_)};
  }
  // None: the page is good.
  std::optional<SealFault> Fault() const {
    const Arrival arrival =
        VerifyArrived(layout_, {.page = PageId(3), .generation = Generation(5), .payload = payload_}, seal_, identity_, 8);
    if (std::holds_alternative<Verified>(arrival)) return std::nullopt;
    return std::get<SealFault>(arrival);
  }

  Layout layout_ = *Layout::Make(
      {.model_hash = "m", .rope_settings = "", .layers = 2, .kv_heads = 2, .head_size_k = 8, .head_size_v = 8, .page_tokens = 32});
  Key key_ = DomainKey(Key{}, "tenant");
  std::vector<std::byte> payload_;
  std::vector<TokenId> tokens_;
  Digest128 identity_{};
  Seal seal_;
};

// The lanes, rounds and folds of every processor are those of the definition, whatever the size.
TEST(ChecksumTest, EveryProcessorsChecksumIsTheSame) {
  std::vector<std::byte> bytes(3000);
  std::mt19937 random(5);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  for (size_t size = 0; size <= bytes.size(); size += size < 1100 ? 1 : 97) {
    const auto part = std::span(bytes).first(size);
    const uint64_t plain = RunChecksumBy(ChecksumKernel::kPlain, part);
    EXPECT_EQ(RunChecksum(part), plain) << size;
    const auto best = static_cast<int>(BestChecksumKernel(ThisProcessor()));
    for (int i = 1; i <= best; ++i) EXPECT_EQ(RunChecksumBy(static_cast<ChecksumKernel>(i), part), plain) << size << " by " << i;
  }
  EXPECT_EQ(RunChecksum(bytes), 0x4c45f29fc3da6c91ULL) << "pages travel between builds: a new checksum is a new page format";
}

// An instruction that a processor lacks ends the process.
TEST(ChecksumTest, AProcessorIsAskedForNothingThatItLacks) {
  const ProcessorFeatures all{.aes = true, .sse41 = true, .vaes = true, .avx512f = true};
  EXPECT_EQ(BestChecksumKernel(all), ChecksumKernel::kVaes);
  EXPECT_EQ(BestChecksumKernel({}), ChecksumKernel::kPlain);
  for (bool ProcessorFeatures::*lacks : {&ProcessorFeatures::aes, &ProcessorFeatures::sse41}) {
    ProcessorFeatures has = all;
    has.*lacks = false;
    EXPECT_EQ(BestChecksumKernel(has), ChecksumKernel::kPlain);
  }
  for (bool ProcessorFeatures::*lacks : {&ProcessorFeatures::vaes, &ProcessorFeatures::avx512f}) {
    ProcessorFeatures has = all;
    has.*lacks = false;
    EXPECT_EQ(BestChecksumKernel(has), ChecksumKernel::kAes);
  }
}

TEST(ChecksumTest, TwoFlippedBitsTwoSwappedBlocksAndALostTailShow) {
  std::vector<std::byte> bytes(4096);
  const uint64_t zeros = RunChecksum(bytes);
  EXPECT_NE(RunChecksum(std::span(bytes).first(4080)), zeros);
  std::mt19937 random(6);
  for (int i = 0; i < 20000; ++i) {
    const size_t a = random() % (8 * bytes.size()), b = random() % (8 * bytes.size());
    for (const size_t at : {a, b}) bytes[at / 8] ^= static_cast<std::byte>(1U << at % 8);
    EXPECT_TRUE(a == b || RunChecksum(bytes) != zeros) << a << " " << b;
    for (const size_t at : {a, b}) bytes[at / 8] ^= static_cast<std::byte>(1U << at % 8);
  }
  // The same bit of the same lane, at every distance and in every pair of bits that are the likeliest to cancel.
  for (size_t distance = 512; distance < bytes.size(); distance += 512) {
    for (size_t a = 0; a < 128; ++a) {
      for (size_t b = 0; b < 128; ++b) {
        bytes[a / 8] ^= static_cast<std::byte>(1U << a % 8);
        bytes[distance + b / 8] ^= static_cast<std::byte>(1U << b % 8);
        EXPECT_NE(RunChecksum(bytes), zeros) << distance << " " << a << " " << b;
        bytes[a / 8] ^= static_cast<std::byte>(1U << a % 8);
        bytes[distance + b / 8] ^= static_cast<std::byte>(1U << b % 8);
      }
    }
  }
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  const uint64_t whole = RunChecksum(bytes);
  for (int i = 0; i < 2000; ++i) {
    const size_t a = random() % 256 * 16, b = random() % 256 * 16;
    if (a == b) continue;
    std::swap_ranges(bytes.begin() + static_cast<ptrdiff_t>(a), bytes.begin() + static_cast<ptrdiff_t>(a + 16),
                     bytes.begin() + static_cast<ptrdiff_t>(b));
    EXPECT_NE(RunChecksum(bytes), whole) << a << " " << b;
    std::swap_ranges(bytes.begin() + static_cast<ptrdiff_t>(a), bytes.begin() + static_cast<ptrdiff_t>(a + 16),
                     bytes.begin() + static_cast<ptrdiff_t>(b));
  }
}

TEST_F(SealTest, I10_ADomainNeverNamesAnothersPageWhateverItsTokensOrItsId) {
  const std::vector<std::string> domains{"tenant", "tenant ", "tenan", "t", "", std::string("tenant\0", 7), "tenant\n", "TENANT"};
  std::vector<Digest128> seen;
  for (const std::string& domain : domains) {
    for (const Digest128& identity : PageIdentities(DomainKey(Key{}, domain), layout_, tokens_)) {
      EXPECT_EQ(std::ranges::find(seen, identity), seen.end()) << domain;
      seen.push_back(identity);
    }
  }
  // Nor does the same domain of another cluster.
  Key secret{};
  secret[31] = 1;
  EXPECT_NE(PageIdentities(DomainKey(secret, "tenant"), layout_, tokens_), PageIdentities(key_, layout_, tokens_));
}

TEST_F(SealTest, AGoodPageIsGood) { EXPECT_EQ(Fault(), std::nullopt); }

TEST_F(SealTest, AnyFlippedBitShows) {
  for (size_t at = 0; at < payload_.size(); at += 7) {
    payload_[at] ^= std::byte{4};
    EXPECT_EQ(Fault(), SealFault::kWrongChecksum) << at;
    payload_[at] ^= std::byte{4};
  }
}

TEST_F(SealTest, I4_WhatWasVerifiedNamesThePageItsTenureAndItsRuns) {
  const Arrival arrival =
      VerifyArrived(layout_, {.page = PageId(3), .generation = Generation(5), .payload = payload_}, seal_, identity_, 8);
  const auto& verified = std::get<Verified>(arrival);
  EXPECT_EQ(verified.page(), PageId(3));
  EXPECT_EQ(verified.generation(), Generation(5));
  EXPECT_EQ(verified.seal(), seal_);
  ASSERT_EQ(verified.run_checksums().size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(verified.run_checksums()[i], RunChecksum(std::span(payload_).subspan(i * layout_.run_bytes(), layout_.run_bytes())));
  }
}

TEST_F(SealTest, RunsThatChangePlacesShow) {
  const size_t bytes = layout_.run_bytes();
  std::swap_ranges(payload_.begin(), payload_.begin() + static_cast<ptrdiff_t>(bytes),
                   payload_.begin() + static_cast<ptrdiff_t>(bytes));
  EXPECT_EQ(Fault(), SealFault::kWrongChecksum);
}

TEST_F(SealTest, EveryFieldOfTheSealIsJudged) {
  const Seal good = seal_;
  seal_.identity[3] ^= 1;
  EXPECT_EQ(Fault(), SealFault::kWrongIdentity);
  seal_ = good;
  seal_.layout_id[0] ^= 1;
  EXPECT_EQ(Fault(), SealFault::kWrongLayout);
  seal_ = good;
  seal_.tokens = 9;
  EXPECT_EQ(Fault(), SealFault::kWrongCount);
}

// A seal that is announced is compared with the one that arrived.
TEST_F(SealTest, SealsThatDifferInOneFieldAreNotEqual) {
  const Seal good = seal_;
  EXPECT_EQ(seal_, good);
  seal_.identity[3] ^= 1;
  EXPECT_NE(seal_, good);
  seal_ = good;
  seal_.tokens = 9;
  EXPECT_NE(seal_, good);
  seal_ = good;
  seal_.layout_id[0] ^= 1;
  EXPECT_NE(seal_, good);
  seal_ = good;
  seal_.checksum ^= 1;
  EXPECT_NE(seal_, good);
}

TEST_F(SealTest, WhatIsPastAnyNumberOfTokensIsZeroedAndNothingElse) {
  for (uint32_t tokens = 0; tokens <= layout_.page_tokens(); ++tokens) {
    std::ranges::fill(payload_, std::byte{0xff});
    ZeroBeyond(layout_, payload_, tokens);
    const auto left = static_cast<size_t>(std::ranges::count(payload_, std::byte{0xff}));
    EXPECT_EQ(left, tokens * layout_.token_bytes()) << tokens;
    EXPECT_TRUE(IsZeroBeyond(layout_, payload_, tokens)) << tokens;
    EXPECT_EQ(tokens == 0, IsZeroBeyond(layout_, payload_, 0)) << tokens;
  }
}

TEST_F(SealTest, EveryFaultOfASealHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (const SealFault fault : {SealFault::kWrongLayout, SealFault::kWrongIdentity, SealFault::kWrongCount,
                                SealFault::kWrongChecksum, SealFault::kNotZeroBeyond}) {
    EXPECT_TRUE(names.insert(ToString(fault)).second) << ToString(fault);
  }
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_EQ(ToString(static_cast<SealFault>(99)), "unknown");
}

TEST_F(SealTest, StaleBytesPastTheLastTokenAreRefusedEvenWithARightChecksum) {
  for (size_t at = 0; at < payload_.size(); ++at) {
    if (payload_[at] != std::byte{0}) continue;
    payload_[at] = std::byte{1};
    seal_.checksum = PayloadChecksum(layout_, payload_);
    ASSERT_EQ(Fault(), SealFault::kNotZeroBeyond) << at;
    payload_[at] = std::byte{0};
  }
}

TEST_F(SealTest, IdentityDependsOnDomainLayoutAndEveryTokenBefore) {
  const auto base = PageIdentities(key_, layout_, tokens_);
  ASSERT_EQ(base.size(), 2u);
  EXPECT_NE(PageIdentities(DomainKey(Key{}, "other"), layout_, tokens_)[0], base[0]);
  LayoutSpec spec = layout_.spec();
  spec.model_hash = "n";
  EXPECT_NE(PageIdentities(key_, *Layout::Make(spec), tokens_)[0], base[0]);
  auto changed = tokens_;
  changed[0] ^= 1;
  EXPECT_NE(PageIdentities(key_, layout_, changed)[1], base[1]) << "a page's identity covers the tokens before it";
  changed = tokens_;
  changed.pop_back();
  EXPECT_EQ(PageIdentities(key_, layout_, changed)[0], base[0]);
  EXPECT_NE(PageIdentities(key_, layout_, changed)[1], base[1]);
}

}  // namespace
}  // namespace cofferdam::kv
