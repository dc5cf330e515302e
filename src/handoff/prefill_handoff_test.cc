#include "handoff/prefill_handoff.h"

#include <gtest/gtest.h>

#include "handoff/testing.h"

namespace cofferdam::handoff {
namespace {

using testing::Count;
using testing::Find;
using testing::milliseconds;
using testing::Page;

class PrefillHandoffTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kTokens = 4 * testing::kPageTokens + 3;  // 5 pages, the last one partial
  static constexpr PrefillHandoff::Options kOptions{
      .pages = 5, .first_page = 0, .silence_limit = milliseconds(300), .progress_limit = milliseconds(1000)};

  void Reserve() { handoff_.OnReserved(actions_); }
  void Seal(uint32_t from, uint32_t to) {
    std::vector<AnnouncedPage> pages;
    for (uint32_t i = from; i < to; ++i) pages.push_back(Page(i, kTokens));
    handoff_.OnSealed(std::move(pages), actions_);
  }
  // Passes `total` in ticks of 50 ms, with a heartbeat of decode at each when `covered` is given.
  void Pass(milliseconds total, std::optional<uint32_t> covered) {
    for (milliseconds passed{0}; passed < total; passed += milliseconds(50)) {
      now_ += milliseconds(50);
      if (covered.has_value()) handoff_.OnPeerHeartbeat(*covered, now_);
      handoff_.OnTick(now_, actions_);
    }
  }

  Time now_{};
  PrefillHandoff handoff_{kOptions, now_};
  PrefillActions actions_;
};

TEST_F(PrefillHandoffTest, AnnouncesEachPageOnceAndInOrderWithTheLastPartialOne) {
  Reserve();
  ASSERT_NE(Find<SendAdmitted>(actions_), nullptr);
  EXPECT_EQ(Find<SendAdmitted>(actions_)->pages, 5u);
  Seal(0, 2);
  Seal(2, 5);
  ASSERT_EQ(Count<SendSealed>(actions_), 2u);
  EXPECT_EQ(std::get<SendSealed>(actions_[2]).pages.back().ordinal, 4u);
  EXPECT_EQ(std::get<SendSealed>(actions_[2]).pages.back().seal.tokens, 3u);
}

TEST_F(PrefillHandoffTest, PagesBeforeTheFirstWantedAreNotAnnounced) {
  PrefillHandoff::Options options = kOptions;
  options.first_page = 2;
  PrefillHandoff handoff(options, now_);
  handoff.OnReserved(actions_);
  handoff.OnSealed({Page(0, kTokens), Page(1, kTokens)}, actions_);
  EXPECT_EQ(Count<SendSealed>(actions_), 0u);
  handoff.OnSealed({Page(2, kTokens)}, actions_);
  ASSERT_EQ(Count<SendSealed>(actions_), 1u);
  EXPECT_EQ(Find<SendSealed>(actions_)->pages.front().ordinal, 2u);
  handoff.OnStreamClosed(actions_);
}

TEST_F(PrefillHandoffTest, NeverEndsTheStreamAfterTheLastSeal) {
  Reserve();
  Seal(0, 5);
  Pass(milliseconds(5000), 5);
  EXPECT_EQ(Count<EndStream>(actions_), 0u);
  EXPECT_TRUE(handoff_.pinned());
}

TEST_F(PrefillHandoffTest, I1_ARefusedRequestOwnsNothing) {
  handoff_.OnRefused(absl::ResourceExhaustedError("full"), actions_);
  ASSERT_EQ(Count<EndStream>(actions_), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(Find<EndStream>(actions_)->status));
  handoff_.OnStreamClosed(actions_);
  EXPECT_EQ(Count<Unpin>(actions_), 0u);
}

TEST_F(PrefillHandoffTest, L6_ThePinLivesAsLongAsTheStream) {
  Reserve();
  Seal(0, 5);
  Pass(milliseconds(60'000), std::nullopt);  // decode is silent: the stream is ended, and the pin stays
  ASSERT_EQ(Count<EndStream>(actions_), 1u);
  EXPECT_TRUE(handoff_.pinned());
  EXPECT_EQ(Count<Unpin>(actions_), 0u);
  handoff_.OnStreamClosed(actions_);
  EXPECT_EQ(Count<Unpin>(actions_), 1u);
}

TEST_F(PrefillHandoffTest, L7_PagesAreLetGoExactlyOnce) {
  Reserve();
  Seal(0, 3);
  handoff_.OnStreamClosed(actions_);
  Pass(milliseconds(5000), std::nullopt);  // and the timeout that would have freed them again
  handoff_.OnStreamClosed(actions_);
  handoff_.OnComputeFailed(absl::InternalError("late"), actions_);
  EXPECT_EQ(Count<Unpin>(actions_), 1u);
  EXPECT_EQ(Count<EndStream>(actions_), 0u) << "nothing is sent on a closed stream";
}

TEST_F(PrefillHandoffTest, L9_ACancelLetsPagesGoWithoutAnyFurtherEvent) {
  Reserve();
  Seal(0, 1);
  actions_.clear();
  handoff_.OnStreamClosed(actions_);
  ASSERT_EQ(actions_.size(), 1u);
  EXPECT_NE(Find<Unpin>(actions_), nullptr);
}

TEST_F(PrefillHandoffTest, H7_ASilentDecodeIsLetGoWithinTheLimit) {
  Reserve();
  Pass(milliseconds(250), std::nullopt);
  EXPECT_EQ(Count<EndStream>(actions_), 0u);
  Pass(milliseconds(150), std::nullopt);
  ASSERT_EQ(Count<EndStream>(actions_), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Find<EndStream>(actions_)->status));
  Pass(milliseconds(1000), std::nullopt);
  EXPECT_EQ(Count<EndStream>(actions_), 1u);
}

TEST_F(PrefillHandoffTest, ADecodeThatReadsNothingIsEndedThoughItTalks) {
  Reserve();
  Seal(0, 3);
  Pass(milliseconds(900), 0);
  EXPECT_EQ(Count<EndStream>(actions_), 0u);
  Pass(milliseconds(200), 0);
  EXPECT_EQ(Count<EndStream>(actions_), 1u);
}

TEST_F(PrefillHandoffTest, ADecodeThatWaitsForUsIsNotBlamed) {
  Reserve();
  Seal(0, 3);
  Pass(milliseconds(5000), 3);
  Seal(3, 4);
  Pass(milliseconds(900), 3);
  EXPECT_EQ(Count<EndStream>(actions_), 0u);
}

TEST_F(PrefillHandoffTest, ACoveredCountBeyondWhatWasAnnouncedIsNoProgress) {
  Reserve();
  Seal(0, 1);
  Pass(milliseconds(1100), 4'000'000'000u);
  EXPECT_EQ(Count<EndStream>(actions_), 1u);
  EXPECT_GT(handoff_.wrong_messages(), 0u);
}

TEST_F(PrefillHandoffTest, WhoseOwnLoopWasLateJudgesNobody) {
  Reserve();
  now_ += milliseconds(10'000);
  handoff_.OnTick(now_, actions_);
  EXPECT_EQ(Count<EndStream>(actions_), 0u);
}

TEST_F(PrefillHandoffTest, H4_PagesReservedForAStreamThatIsOverAreLetGo) {
  handoff_.OnStreamClosed(actions_);
  EXPECT_EQ(Count<Unpin>(actions_), 0u);
  Reserve();
  EXPECT_EQ(Count<Unpin>(actions_), 1u);
  EXPECT_EQ(Count<SendAdmitted>(actions_), 0u);
  EXPECT_FALSE(handoff_.pinned());
}

TEST_F(PrefillHandoffTest, H4_PagesReservedWhileTheStreamEndsAreLetGoWithIt) {
  Pass(milliseconds(500), std::nullopt);
  ASSERT_EQ(Count<EndStream>(actions_), 1u);
  Reserve();
  EXPECT_EQ(Count<SendAdmitted>(actions_), 0u);
  handoff_.OnStreamClosed(actions_);
  EXPECT_EQ(Count<Unpin>(actions_), 1u);
}

TEST_F(PrefillHandoffTest, H4_SealsOfTheRunningStepAfterACancelAreNotSent) {
  Reserve();
  handoff_.OnStreamClosed(actions_);
  actions_.clear();
  Seal(0, 2);
  EXPECT_TRUE(actions_.empty());
}

TEST_F(PrefillHandoffTest, AFailedComputationEndsTheStreamAndLetsGoOnlyOnce) {
  Reserve();
  handoff_.OnComputeFailed(absl::DataLossError("tag"), actions_);
  handoff_.OnStreamClosed(actions_);
  EXPECT_EQ(Count<EndStream>(actions_), 1u);
  EXPECT_EQ(Count<Unpin>(actions_), 0u) << "its pages were gone already";
}

TEST_F(PrefillHandoffTest, APageSealedTwiceEndsTheProcess) {
  Reserve();
  Seal(0, 2);
  EXPECT_DEATH(Seal(1, 2), "sealed once, in order");
}

}  // namespace
}  // namespace cofferdam::handoff
