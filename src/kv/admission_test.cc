#include "kv/admission.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace cofferdam::kv {
namespace {

class AdmissionTest : public testing::Test {
 protected:
  static constexpr uint64_t kPages = 8;
  static PoolCounts WithFree(uint64_t free) {
    PoolCounts counts;
    counts.total = kPages;
    counts.by_state[static_cast<size_t>(PageState::kFree)] = free;
    counts.by_state[static_cast<size_t>(PageState::kReserved)] = kPages - free;
    return counts;
  }

  Layout layout_ = *Layout::Make(
      {.model_hash = "m", .rope_settings = "", .layers = 1, .kv_heads = 1, .head_size_k = 8, .head_size_v = 8, .page_tokens = 16});
  Admission admission_{"decode worker", layout_, 100};
};

TEST_F(AdmissionTest, AsksForPromptAndOutputInWholePages) {
  EXPECT_EQ(admission_.PagesFor({.prompt_tokens = 16, .output_tokens = 0}), 1u);
  EXPECT_EQ(admission_.PagesFor({.prompt_tokens = 16, .output_tokens = 1}), 2u);
  EXPECT_EQ(admission_.PagesFor({.prompt_tokens = 1, .output_tokens = 47}), 3u);
}

TEST_F(AdmissionTest, WhatIsCachedOrAskedForLaterIsNotReserved) {
  EXPECT_EQ(admission_.PagesFor({.prompt_tokens = 40, .output_tokens = 40, .cached_pages = 2}), 3u);
  EXPECT_EQ(admission_.PagesFor({.prompt_tokens = 40, .output_tokens = 40, .first_output_tokens = 8}), 3u);
  EXPECT_EQ(admission_.PagesFor({.prompt_tokens = 40, .output_tokens = 4, .first_output_tokens = 30}), 3u);
}

TEST_F(AdmissionTest, HeadroomStaysFreeForThoseThatGrow) {
  const AdmissionNeed need{.prompt_tokens = 48, .headroom_pages = 2};
  EXPECT_TRUE(std::holds_alternative<MustWait>(admission_.Admit(need, WithFree(4))));
  const AdmissionResult result = admission_.Admit(need, WithFree(5));
  ASSERT_TRUE(std::holds_alternative<Admitted>(result));
  EXPECT_EQ(std::get<Admitted>(result).pages(), 3u);
}

TEST_F(AdmissionTest, TheContextIsTheSmallerOfTheLongestSequenceAndTheUsablePages) {
  PoolCounts counts = WithFree(kPages);
  EXPECT_EQ(admission_.context_tokens(counts), 100u);
  counts.by_state[static_cast<size_t>(PageState::kQuarantined)] = 3;
  EXPECT_EQ(admission_.context_tokens(counts), 5u * 16) << "I11";
}

TEST_F(AdmissionTest, TheLastTokenThatFitsIsServedAndTheNextIsNot) {
  EXPECT_TRUE(admission_.CheckContext({.prompt_tokens = 99, .output_tokens = 1}, WithFree(0)).ok());
  EXPECT_FALSE(admission_.CheckContext({.prompt_tokens = 99, .output_tokens = 2}, WithFree(0)).ok());
  EXPECT_TRUE(admission_.CheckContext({.prompt_tokens = 100}, WithFree(0)).ok());
  EXPECT_FALSE(admission_.CheckContext({.prompt_tokens = 101}, WithFree(kPages)).ok());
}

TEST_F(AdmissionTest, I1_WhoOwnsAPageGrowsByOneWhenOneIsFree) {
  std::vector<std::byte> memory(2 * layout_.page_bytes());
  Pool pool(layout_, memory, 42, ReuseOrder::kFifo);
  auto handles = *pool.Reserve(std::get<Admitted>(admission_.Admit({.prompt_tokens = 1}, pool.counts())));
  std::optional<Admitted> growth = admission_.AdmitGrowth(handles[0], pool.counts());
  ASSERT_TRUE(growth.has_value());
  EXPECT_EQ(growth->pages(), 1u);
  handles.push_back(std::move((*pool.Reserve(std::move(*growth)))[0]));
  EXPECT_FALSE(admission_.AdmitGrowth(handles[1], pool.counts()).has_value());
  for (PageHandle& handle : handles) pool.Release(std::move(handle), StepEpoch(0));
}

TEST_F(AdmissionTest, I1_WhoOwnsNoPageDoesNotGrow) {
  EXPECT_DEATH((void)admission_.AdmitGrowth(PageHandle(), WithFree(kPages)), "I1");
}

}  // namespace
}  // namespace cofferdam::kv
