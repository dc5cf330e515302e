#include "kv/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string_view>

#include "kv/admission.h"

namespace cofferdam::kv {
namespace {

class PoolTest : public testing::Test {
 protected:
  static constexpr uint64_t kPages = 8;
  PoolTest()
      : memory_(kPages * layout_.page_bytes()),
        pool_(layout_, memory_, 42, ReuseOrder::kLifo),
        admission_("decode worker", layout_, 1000) {}

  std::vector<PageHandle> Take(uint64_t pages) {
    AdmissionResult result = admission_.Admit({.prompt_tokens = pages * layout_.page_tokens()}, pool_.counts());
    return *pool_.Reserve(std::get<Admitted>(std::move(result)));
  }
  void GiveBack(std::vector<PageHandle> handles, uint64_t epoch) {
    for (PageHandle& handle : handles) pool_.Release(std::move(handle), StepEpoch(epoch));
  }
  // A peer's full page of `fill` comes to lie in the page, and is found good.
  Verified Arrive(const PageHandle& handle, std::byte fill = std::byte{7}) {
    const std::span<std::byte> payload = pool_.Payload(handle.page());
    std::ranges::fill(payload, fill);
    const Seal seal{.tokens = 16, .layout_id = layout_.id(), .checksum = PayloadChecksum(layout_, payload)};
    return std::get<Verified>(VerifyArrived(layout_, {.page = handle.page(), .generation = handle.generation(), .payload = payload},
                                            seal, seal.identity, 16));
  }
  uint64_t In(PageState state) const { return pool_.counts().by_state[static_cast<size_t>(state)]; }

  Layout layout_ = *Layout::Make(
      {.model_hash = "m", .rope_settings = "", .layers = 1, .kv_heads = 1, .head_size_k = 8, .head_size_v = 8, .page_tokens = 16});
  std::vector<std::byte> memory_;
  Pool pool_;
  Admission admission_;
};

TEST_F(PoolTest, I11_WhatIsQuarantinedIsPromisedToNobody) {
  auto handles = Take(kPages);
  for (uint64_t lost = 1; lost <= kPages; ++lost) {
    pool_.Quarantine(std::move(handles[lost - 1]));
    const uint64_t left = (kPages - lost) * layout_.page_tokens();
    EXPECT_EQ(admission_.context_tokens(pool_.counts()), left);
    EXPECT_TRUE(std::holds_alternative<Rejected>(admission_.Admit({.prompt_tokens = left + 1}, pool_.counts()))) << lost;
    EXPECT_EQ(std::holds_alternative<MustWait>(admission_.Admit({.prompt_tokens = left}, pool_.counts())), left > 0) << lost;
  }
  pool_.CheckConservation();
}

TEST_F(PoolTest, I1_WhatDoesNotFitIsRejectedWithBothNumbersAndTakesNothing) {
  auto result = admission_.Admit({.prompt_tokens = 120, .output_tokens = 9}, pool_.counts());
  ASSERT_TRUE(std::holds_alternative<Rejected>(result));
  const std::string message(std::get<Rejected>(result).status.message());
  EXPECT_NE(message.find("129"), std::string::npos) << message;
  EXPECT_NE(message.find("128"), std::string::npos) << message;
  EXPECT_EQ(pool_.counts().reserved_total, 0u);
  EXPECT_TRUE(
      std::holds_alternative<Rejected>(admission_.Admit({.prompt_tokens = 1, .output_tokens = ~uint64_t{0}}, pool_.counts())));
}

TEST_F(PoolTest, I1_WhatFitsLaterWaitsAndHoldsNothing) {
  auto held = Take(5);
  EXPECT_TRUE(std::holds_alternative<MustWait>(admission_.Admit({.prompt_tokens = 64}, pool_.counts())));
  EXPECT_EQ(In(PageState::kReserved), 5u);
  GiveBack(std::move(held), 0);
}

TEST_F(PoolTest, I2_GenerationsAreNeverReused) {
  uint64_t last = 0;
  for (int round = 0; round < 50; ++round) {
    auto handles = Take(3);
    for (const PageHandle& handle : handles) {
      EXPECT_GT(handle.generation().value(), last);
      last = handle.generation().value();
    }
    GiveBack(std::move(handles), 0);
    pool_.Reclaim(StepEpoch(0));
  }
}

TEST_F(PoolTest, I6_TagsShowAWriteOverEitherEdgeAndAnEarlierTenure) {
  auto handles = Take(1);
  const PageId page = handles[0].page();
  const Generation generation = handles[0].generation();
  EXPECT_TRUE(pool_.TagsMatch(page, generation));
  std::byte* payload = pool_.Payload(page).data();
  for (std::byte* edge : {payload - 1, payload + layout_.payload_bytes()}) {
    *edge ^= std::byte{1};
    EXPECT_FALSE(pool_.TagsMatch(page, generation));
    *edge ^= std::byte{1};
  }
  GiveBack(std::move(handles), 0);
  pool_.Reclaim(StepEpoch(0));
  EXPECT_FALSE(pool_.TagsMatch(page, generation));
  auto again = Take(1);
  EXPECT_EQ(again[0].page(), page);
  EXPECT_FALSE(pool_.TagsMatch(page, generation));
  GiveBack(std::move(again), 0);
}

TEST_F(PoolTest, I7_AReleasedPageWaitsForTheStepAndTheTransferAndIsZeroed) {
  auto handles = Take(1);
  const PageId page = handles[0].page();
  const Generation generation = handles[0].generation();
  std::memset(pool_.Payload(page).data(), 0x5a, layout_.payload_bytes());
  pool_.HoldForTransfer(handles[0]);
  GiveBack(std::move(handles), 7);
  EXPECT_EQ(pool_.Reclaim(StepEpoch(6)), 0u) << "the step still runs";
  EXPECT_EQ(pool_.Reclaim(StepEpoch(7)), 0u) << "the read is still out";
  EXPECT_EQ(In(PageState::kRetired), 1u);
  pool_.EndTransfer(page, generation);
  EXPECT_EQ(pool_.Reclaim(StepEpoch(7)), 1u);
  for (std::byte byte : pool_.Payload(page)) ASSERT_EQ(byte, std::byte{0});
}

TEST_F(PoolTest, I7_APageThatTheZeroerHasIsRetiredAndComesBackZeroed) {
  Zeroer zeroer([] {});
  pool_.ZeroWith(&zeroer);
  auto handles = Take(3);
  const PageId page = handles[1].page();
  for (const PageHandle& handle : handles) std::memset(pool_.Payload(handle.page()).data(), 0x5a, layout_.payload_bytes());
  GiveBack(std::move(handles), 4);
  EXPECT_EQ(pool_.Reclaim(StepEpoch(3)), 0u) << "the step still runs";
  size_t freed = pool_.Reclaim(StepEpoch(4));
  while (freed < 3) {
    EXPECT_EQ(In(PageState::kRetired), 3 - freed) << "I9: a page is not free before it is zero";
    pool_.CheckConservation();
    freed += pool_.Reclaim(StepEpoch(4));
  }
  EXPECT_EQ(freed, 3u);
  EXPECT_EQ(pool_.counts().zeroed_bytes, 3 * layout_.page_bytes());
  EXPECT_EQ(pool_.deferred_release().count(), 3u);
  for (std::byte byte : pool_.Payload(page)) ASSERT_EQ(byte, std::byte{0});
  pool_.CheckConservation();
  pool_.ZeroWith(nullptr);
}

TEST_F(PoolTest, I4_AdoptionChecksTheTagsAgain) {
  auto handles = Take(2);
  const std::vector<Verified> verified{Arrive(handles[0]), Arrive(handles[1])};
  EXPECT_TRUE(pool_.Adopt(handles[0], verified[0]).ok());
  EXPECT_EQ(pool_.StateOf(handles[0].page()), PageState::kSealed);
  pool_.Payload(handles[1].page()).data()[-5] ^= std::byte{1};
  EXPECT_EQ(pool_.Adopt(handles[1], verified[1]).code(), absl::StatusCode::kDataLoss);
  pool_.Quarantine(std::move(handles[1]));
  EXPECT_EQ(In(PageState::kQuarantined), 1u);
  EXPECT_EQ(admission_.context_tokens(pool_.counts()), 7u * 16) << "I11: quarantined pages are lost capacity";
  pool_.Release(std::move(handles[0]), StepEpoch(0));
}

TEST_F(PoolTest, I6_ASealedPagesBytesAreComparedWithTheSealOfTheirTenure) {
  auto handles = Take(2);
  ASSERT_TRUE(pool_.Adopt(handles[0], Arrive(handles[0])).ok());
  pool_.MarkFilling(handles[1]);
  std::ranges::fill(pool_.Payload(handles[1].page()), std::byte{9});
  (void)pool_.SealPage(handles[1], {}, 16);
  for (PageHandle& handle : handles) {
    const std::span<std::byte> payload = pool_.Payload(handle.page());
    EXPECT_TRUE(pool_.PayloadMatches(handle));
    for (size_t i = 0; i < layout_.runs(); ++i) {
      EXPECT_EQ(pool_.RunChecksumsOf(handle)[i], RunChecksum(payload.subspan(i * layout_.run_bytes(), layout_.run_bytes())));
    }
    payload[payload.size() / 2] ^= std::byte{1};
    EXPECT_FALSE(pool_.PayloadMatches(handle));
    pool_.Release(std::move(handle), StepEpoch(0));
  }
}

TEST_F(PoolTest, I9_OfTwoThatWereAdmittedForTheSamePagesTheSecondGetsNone) {
  auto first = std::get<Admitted>(admission_.Admit({.prompt_tokens = 80}, pool_.counts()));
  auto second = std::get<Admitted>(admission_.Admit({.prompt_tokens = 80}, pool_.counts()));
  auto held = pool_.Reserve(std::move(first));
  ASSERT_TRUE(held.has_value());
  EXPECT_FALSE(pool_.Reserve(std::move(second)).has_value());
  EXPECT_EQ(In(PageState::kReserved), 5u) << "all or none";
  pool_.CheckConservation();
  GiveBack(std::move(*held), 0);
}

TEST_F(PoolTest, I6_NoTenureAndAPageThatIsNotThereMatchNoTag) {
  auto handles = Take(1);
  EXPECT_FALSE(pool_.TagsMatch(PageId(kPages), handles[0].generation()));
  EXPECT_FALSE(pool_.TagsMatch(handles[0].page(), Generation()));
  GiveBack(std::move(handles), 0);
  pool_.Reclaim(StepEpoch(0));
  EXPECT_FALSE(pool_.TagsMatch(PageId(0), Generation())) << "a free page is in no tenure";
}

TEST_F(PoolTest, I4_APartialPageOfAPeerIsFilledFurtherHere) {
  auto handles = Take(1);
  const std::span<std::byte> payload = pool_.Payload(handles[0].page());
  std::ranges::fill(payload, std::byte{7});
  ZeroBeyond(layout_, payload, 5);
  const Seal seal{.tokens = 5, .layout_id = layout_.id(), .checksum = PayloadChecksum(layout_, payload)};
  const Arrival arrival = VerifyArrived(
      layout_, {.page = handles[0].page(), .generation = handles[0].generation(), .payload = payload}, seal, seal.identity, 5);
  ASSERT_TRUE(pool_.Adopt(handles[0], std::get<Verified>(arrival)).ok());
  EXPECT_EQ(pool_.StateOf(handles[0].page()), PageState::kFilling);
  EXPECT_EQ(pool_.SealPage(handles[0], {}, 16).tokens, 16u);
  GiveBack(std::move(handles), 0);
}

TEST_F(PoolTest, I2_AHandleThatIsMovedToItselfKeepsItsTenure) {
  auto handles = Take(1);
  PageHandle& same = handles[0];
  handles[0] = std::move(same);
  EXPECT_TRUE(handles[0].held());
  EXPECT_TRUE(pool_.TagsMatch(handles[0].page(), handles[0].generation()));
  GiveBack(std::move(handles), 0);
}

TEST_F(PoolTest, APageThatWasGivenBackFirstIsReusedFirst) {
  std::vector<std::byte> memory(3 * layout_.page_bytes());
  Pool pool(layout_, memory, 42, ReuseOrder::kFifo);
  const auto take_one = [&] {
    return std::move((*pool.Reserve(std::get<Admitted>(admission_.Admit({.prompt_tokens = 1}, pool.counts()))))[0]);
  };
  std::vector<PageHandle> handles;
  for (int i = 0; i < 3; ++i) handles.push_back(take_one());
  std::vector<PageId> given_back;
  for (const size_t i : {1, 0, 2}) {
    given_back.push_back(handles[i].page());
    pool.Release(std::move(handles[i]), StepEpoch(0));
    pool.Reclaim(StepEpoch(0));
  }
  for (const PageId page : given_back) {
    PageHandle handle = take_one();
    EXPECT_EQ(handle.page(), page);
    pool.Release(std::move(handle), StepEpoch(0));
  }
}

TEST_F(PoolTest, EveryStateOfAPageHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kPageStates; ++i) EXPECT_TRUE(names.insert(ToString(static_cast<PageState>(i))).second) << i;
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_EQ(ToString(static_cast<PageState>(kPageStates)), "unknown");
}

using PoolDeathTest = PoolTest;
TEST_F(PoolDeathTest, I4_WhatWasVerifiedForAnotherPageOrTenureIsNotAdopted) {
  auto handles = Take(2);
  const Verified other = Arrive(handles[1]);
  EXPECT_DEATH((void)pool_.Adopt(handles[0], other), "I4");
  pool_.Release(std::move(handles[1]), StepEpoch(0));
  pool_.Reclaim(StepEpoch(0));
  auto again = Take(1);
  ASSERT_EQ(again[0].page(), other.page());
  EXPECT_DEATH((void)pool_.Adopt(again[0], other), "I4");
  pool_.Release(std::move(again[0]), StepEpoch(0));
  pool_.Release(std::move(handles[0]), StepEpoch(0));
}

TEST_F(PoolDeathTest, I2_ADroppedTenureAndASecondSealEndTheProcess) {
  EXPECT_DEATH(
      {
        auto handles = Take(1);
        handles.clear();
      },
      "I2");
  auto handles = Take(1);
  pool_.MarkFilling(handles[0]);
  pool_.SealPage(handles[0], {}, 16);
  EXPECT_DEATH(pool_.SealPage(handles[0], {}, 16), "sealed once");
  GiveBack(std::move(handles), 0);
}

TEST_F(PoolTest, I9_ConservationHoldsThroughARandomLife) {
  std::mt19937 random(3);
  std::vector<std::vector<PageHandle>> held;
  uint64_t epoch = 1;
  for (int event = 0; event < 20000; ++event) {
    switch (random() % 4) {
      case 0: {
        auto result = admission_.Admit({.prompt_tokens = 1 + random() % 64}, pool_.counts());
        if (auto* admitted = std::get_if<Admitted>(&result)) held.push_back(*pool_.Reserve(std::move(*admitted)));
        break;
      }
      case 1:
        if (!held.empty()) {
          GiveBack(std::move(held.back()), epoch);
          held.pop_back();
        }
        break;
      case 2:
        ++epoch;
        break;
      default:
        pool_.Reclaim(StepEpoch(epoch - 1));
        break;
    }
    pool_.CheckConservation();
  }
  for (auto& handles : held) GiveBack(std::move(handles), epoch);
  pool_.Reclaim(StepEpoch(epoch));
  EXPECT_EQ(pool_.counts().free(), kPages);
}

}  // namespace
}  // namespace cofferdam::kv
