#include "model/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "model/scratch_pages.h"

namespace cofferdam::model {
namespace {

constexpr uint32_t kTokens = 300;  // two whole softmax blocks and a part

// One sequence with random K and V in pages, and queries over it.
class Sequence {
 public:
  Sequence(uint32_t head_size, uint32_t page_tokens)
      : layout_(*kv::Layout::Make({.model_hash = "00",
                                   .rope_settings = "",
                                   .layers = 1,
                                   .kv_heads = 1,
                                   .head_size_k = head_size,
                                   .head_size_v = head_size,
                                   .page_tokens = page_tokens})),
        pages_(layout_, kTokens),
        k_(size_t{kTokens} * head_size),
        v_(k_.size()),
        size_(head_size) {
    std::mt19937 random(head_size);
    std::normal_distribution<float> normal;
    for (float& x : k_) x = normal(random);
    for (float& x : v_) x = normal(random);
    for (uint32_t t = 0; t < kTokens; ++t) WriteKv(run(), t, &k_[size_t{t} * size_], &v_[size_t{t} * size_]);
    for (uint32_t i = 0; i < kTileQueries; ++i) {
      for (uint32_t d = 0; d < size_; ++d) q_.push_back(normal(random));
    }
  }

  KvRun run() const {
    return {.pages = pages_.table().data(),
            .k_offset = layout_.KOffset(0, 0),
            .v_offset = layout_.VOffset(0, 0),
            .page_tokens = layout_.page_tokens(),
            .head_size = size_};
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(size_)); }

  template <typename Kernel>
  std::vector<float> Run(Kernel kernel, const std::vector<uint32_t>& counts) const {
    std::vector<float> out(counts.size() * size_);
    std::vector<Query> queries;
    for (size_t i = 0; i < counts.size(); ++i) queries.push_back({.q = &q_[i * size_], .out = &out[i * size_], .count = counts[i]});
    AttentionScratch scratch(size_);
    kernel(run(), scale(), queries, scratch);
    return out;
  }

  // Softmax attention in double, from the K and V before they were rounded to f16.
  std::vector<double> Exact(size_t query, uint32_t count) const {
    std::vector<double> p(count), out(size_);
    double sum = 0;
    for (uint32_t t = 0; t < count; ++t) {
      double score = 0;
      for (uint32_t d = 0; d < size_; ++d) score += double{q_[query * size_ + d]} * double{k_[size_t{t} * size_ + d]};
      sum += p[t] = std::exp(score * double{scale()});
    }
    for (uint32_t t = 0; t < count; ++t) {
      for (uint32_t d = 0; d < size_; ++d) out[d] += p[t] / sum * double{v_[size_t{t} * size_ + d]};
    }
    return out;
  }

 private:
  kv::Layout layout_;
  ScratchPages pages_;
  std::vector<float> k_, v_, q_;
  uint32_t size_;
};

class Attention : public testing::TestWithParam<uint32_t> {};

TEST_P(Attention, BothKernelsComputeSoftmaxAttention) {
  const Sequence sequence(GetParam(), 64);
  const std::vector<uint32_t> counts = {1, 2, 15, 16, 17, 64, 127, 128, 129, 255, 256, 257, 300};
  const auto fast = sequence.Run(Attend, counts);
  const auto portable = sequence.Run(AttendPortable, counts);
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto exact = sequence.Exact(i, counts[i]);
    for (uint32_t d = 0; d < GetParam(); ++d) {
      // f16 rounds K and V to 2^-11; everything else is f32.
      EXPECT_NEAR(fast[i * GetParam() + d], exact[d], 4e-3) << counts[i];
      EXPECT_NEAR(fast[i * GetParam() + d], portable[i * GetParam() + d], 2e-5) << counts[i];
    }
  }
}

TEST_P(Attention, I13TilesDoNotChangeBits) {
  const Sequence sequence(GetParam(), 32);
  // Rows of one tile: neighbours over a block's edge, each with two heads.
  std::vector<uint32_t> counts;
  for (uint32_t row = 0; row < 8; ++row) counts.insert(counts.end(), 2, 125 + row);
  const auto together = sequence.Run(Attend, counts);
  for (size_t first = 0; first < counts.size(); ++first) {
    for (size_t tile = 1; first + tile <= counts.size(); ++tile) {
      // Query i must stay query i, so the tile is run by pointing into the same vectors.
      const auto alone = sequence.Run([&](const KvRun& run, float scale, std::span<const Query> queries,
                                          AttentionScratch& scratch) { Attend(run, scale, queries.subspan(first, tile), scratch); },
                                      counts);
      ASSERT_EQ(std::memcmp(&alone[first * GetParam()], &together[first * GetParam()], tile * GetParam() * sizeof(float)), 0)
          << "queries " << first << " to " << first + tile;
    }
  }
}

TEST_P(Attention, I13SlotsPastAQueryNeverReachIt) {
  Sequence sequence(GetParam(), 64);
  const std::vector<uint32_t> counts = {120, 121, 131, 200};
  const auto before = sequence.Run(Attend, counts);
  const std::vector<float> poison(GetParam(), NAN);
  WriteKv(sequence.run(), 121, poison.data(), poison.data());  // visible to the last two only
  const auto after = sequence.Run(Attend, counts);
  EXPECT_EQ(std::memcmp(before.data(), after.data(), 2 * GetParam() * sizeof(float)), 0);
  EXPECT_TRUE(std::isnan(after[2 * GetParam()]));
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, Attention, testing::Values(8u, 16u, 40u, 64u, 80u, 96u, 128u, 256u));

}  // namespace
}  // namespace cofferdam::model
