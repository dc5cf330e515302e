#include "handoff/decode_handoff.h"

#include <gtest/gtest.h>

#include <memory>

#include "handoff/testing.h"

namespace cofferdam::handoff {
namespace {

using kv::SealFault;
using testing::Count;
using testing::Find;
using testing::kAttempt;
using testing::kEarlier;
using testing::kPageBytes;
using testing::milliseconds;
using testing::Page;

class DecodeHandoffTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kTokens = 4 * testing::kPageTokens + 3;  // 5 pages, the last one partial
  static DecodeHandoff::Options Options() {
    return {.attempt = kAttempt,
            .layout_id = testing::LayoutId(),
            .identities = testing::Identities(5),
            .covered_tokens = kTokens,
            .first_page = 0,
            .page_tokens = testing::kPageTokens,
            .page_bytes = kPageBytes,
            .silence_limit = milliseconds(300),
            .stall_limit = milliseconds(1000)};
  }
  void Announce(std::initializer_list<uint32_t> ordinals, AttemptId attempt = kAttempt) {
    std::vector<AnnouncedPage> pages;
    for (uint32_t ordinal : ordinals) pages.push_back(Page(ordinal, kTokens));
    handoff_.OnAnnounced(attempt, pages, now_, actions_);
  }
  void AnnounceOne(const AnnouncedPage& page) { handoff_.OnAnnounced(kAttempt, {&page, 1}, now_, actions_); }
  void Done(uint32_t ordinal) { Done(ordinal, testing::Good(ordinal, kTokens)); }
  void Done(uint32_t ordinal, const kv::Arrival& arrival) { handoff_.OnReadDone(ordinal, arrival, actions_); }
  void Pass(milliseconds total, std::optional<uint64_t> steps) {
    for (milliseconds passed{0}; passed < total; passed += milliseconds(50)) {
      now_ += milliseconds(50);
      if (steps.has_value()) handoff_.OnHeartbeat(kAttempt, *steps, now_, actions_);
      handoff_.OnTick(now_, actions_);
    }
  }
  void ExpectFailed(bool retry_elsewhere) {
    ASSERT_EQ(Count<Fail>(actions_), 1u);
    EXPECT_EQ(Find<Fail>(actions_)->retry_elsewhere, retry_elsewhere);
    EXPECT_FALSE(Find<Fail>(actions_)->status.ok());
    EXPECT_EQ(Count<Complete>(actions_), 0u);
    EXPECT_EQ(Count<CloseStream>(actions_), 1u);
  }

  Time now_{};
  TransferWindow window_{3 * kPageBytes};
  DecodeHandoff handoff_{Options(), window_, now_};
  DecodeActions actions_;
};

TEST_F(DecodeHandoffTest, ReadsAdoptsAndCompletesWhenEverythingIsCovered) {
  handoff_.OnAdmitted(kAttempt, now_, actions_);
  Announce({0, 1});
  EXPECT_EQ(Count<IssueRead>(actions_), 2u);
  Done(1);
  Announce({2, 3, 4});
  Done(0), Done(2), Done(4);
  EXPECT_EQ(Count<Complete>(actions_), 0u);
  EXPECT_EQ(handoff_.covered_pages(), 4u);
  Done(3);
  EXPECT_EQ(Count<Adopt>(actions_), 5u);
  EXPECT_EQ(Count<Complete>(actions_), 1u);
  EXPECT_EQ(Count<CloseStream>(actions_), 1u);
  EXPECT_EQ(Count<ReleasePages>(actions_), 0u);
  EXPECT_EQ(window_.in_flight_bytes(), 0u);
}

TEST_F(DecodeHandoffTest, AReadCarriesWhatDecodeExpectsOfItsOwnTokens) {
  Announce({4});
  ASSERT_EQ(Count<IssueRead>(actions_), 1u);
  EXPECT_EQ(Find<IssueRead>(actions_)->expected_tokens, 3u);
  EXPECT_EQ(Find<IssueRead>(actions_)->expected_identity, testing::Identity(4));
  EXPECT_EQ(Find<IssueRead>(actions_)->page.source.generation, 104u);
  Done(4);
}

TEST_F(DecodeHandoffTest, I4_APageIsReadAtMostOnce) {
  Announce({0, 0});
  Announce({0});
  EXPECT_EQ(Count<IssueRead>(actions_), 1u);
  Done(0);
  Announce({0});
  EXPECT_EQ(Count<IssueRead>(actions_), 1u);
  EXPECT_EQ(handoff_.stale_messages(), 3u);
  EXPECT_TRUE(handoff_.running());
}

TEST_F(DecodeHandoffTest, I4_NothingIsAdoptedWhoseBytesWereJudgedBad) {
  for (SealFault fault : {SealFault::kWrongChecksum, SealFault::kNotZeroBeyond, SealFault::kWrongIdentity}) {
    DecodeHandoff handoff(Options(), window_, now_);
    DecodeActions actions;
    const AnnouncedPage page = Page(0, kTokens);
    handoff.OnAnnounced(kAttempt, {&page, 1}, now_, actions);
    handoff.OnReadDone(0, fault, actions);
    EXPECT_EQ(Count<Adopt>(actions), 0u);
    ASSERT_EQ(Count<Fail>(actions), 1u);
    EXPECT_TRUE(Find<Fail>(actions)->retry_elsewhere);
    EXPECT_EQ(Count<ReleasePages>(actions), 1u);
  }
}

TEST_F(DecodeHandoffTest, I5_AStreamThatEndsWellBeforeCoverageHasFailed) {
  Announce({0, 1});
  Done(0), Done(1);
  handoff_.OnStreamEnded(absl::OkStatus(), actions_);
  ExpectFailed(true);
  EXPECT_EQ(Count<ReleasePages>(actions_), 1u);
}

TEST_F(DecodeHandoffTest, I5_CoverageIsDecodesOwnCountAndNotThePeers) {
  Announce({0});
  Done(0);
  handoff_.OnHeartbeat(kAttempt, 1'000'000, now_, actions_);
  EXPECT_EQ(Count<Complete>(actions_), 0u);
  // A page beyond the prompt is the peer's violation, not coverage.
  AnnouncedPage beyond = Page(4, kTokens);
  beyond.ordinal = 5;
  AnnounceOne(beyond);
  ExpectFailed(true);
}

TEST_F(DecodeHandoffTest, I5_AnotherPromptsPageFailsBeforeAnyRead) {
  AnnouncedPage wrong = Page(1, kTokens);
  wrong.ordinal = 0;
  AnnounceOne(wrong);
  ExpectFailed(true);
  EXPECT_EQ(Count<IssueRead>(actions_), 0u);
  EXPECT_EQ(Count<ReleasePages>(actions_), 1u);
}

TEST_F(DecodeHandoffTest, I5_APageOfFewerTokensFailsBeforeAnyRead) {
  AnnouncedPage wrong = Page(0, kTokens);
  wrong.seal.tokens = 15;
  AnnounceOne(wrong);
  ExpectFailed(true);
  EXPECT_EQ(Count<IssueRead>(actions_), 0u);
}

TEST_F(DecodeHandoffTest, H6_APageOfAnotherLayoutFailsBeforeAnyRead) {
  AnnouncedPage wrong = Page(0, kTokens);
  wrong.seal.layout_id[0] ^= 1;
  AnnounceOne(wrong);
  ExpectFailed(true);
  EXPECT_EQ(Count<IssueRead>(actions_), 0u);
}

TEST_F(DecodeHandoffTest, I8_MessagesOfAnEarlierAttemptAreCountedAndDropped) {
  Announce({0, 1, 2}, kEarlier);
  handoff_.OnAdmitted(kEarlier, now_, actions_);
  handoff_.OnHeartbeat({.boot_id = 8, .counter = 2}, 1, now_, actions_);
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(handoff_.stale_messages(), 3u);
}

TEST_F(DecodeHandoffTest, I8_AMalformedMessageOfAnEarlierAttemptEndsNothing) {
  handoff_.OnMalformed(kEarlier, absl::InvalidArgumentError("no digest"), actions_);
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(handoff_.stale_messages(), 1u);
  handoff_.OnMalformed(kAttempt, absl::InvalidArgumentError("no digest"), actions_);
  ExpectFailed(true);
}

TEST_F(DecodeHandoffTest, I8_AnEarlierAttemptsWordsDoNotKeepASilentPeerAlive) {
  for (int i = 0; i < 8; ++i) {
    handoff_.OnHeartbeat(kEarlier, 1, now_, actions_);
    Pass(milliseconds(50), std::nullopt);
  }
  EXPECT_EQ(Count<ClosePeer>(actions_), 1u);
}

TEST_F(DecodeHandoffTest, H2_NoSuccessOverwritesAFailure) {
  Announce({0, 1, 2});
  Done(0, SealFault::kWrongChecksum);
  Done(1), Done(2);
  Announce({3, 4});
  handoff_.OnStreamEnded(absl::OkStatus(), actions_);
  ExpectFailed(true);
  EXPECT_EQ(Count<Adopt>(actions_), 0u);
  EXPECT_EQ(Count<IssueRead>(actions_), 3u);
  EXPECT_EQ(Count<ReleasePages>(actions_), 1u);
}

TEST_F(DecodeHandoffTest, H3_AnAbortBeforeTheLastPageIsKept) {
  Announce({0, 1, 2});
  Done(0), Done(1), Done(2);
  Announce({3, 4});
  Done(3);
  handoff_.OnCancel(actions_);
  Done(4);
  ExpectFailed(false);
  EXPECT_TRUE(absl::IsCancelled(Find<Fail>(actions_)->status));
  EXPECT_EQ(Count<ReleasePages>(actions_), 1u);
}

TEST_F(DecodeHandoffTest, H4_CancelAndEndOfStreamInEitherOrder) {
  for (bool cancel_first : {true, false}) {
    DecodeHandoff handoff(Options(), window_, now_);
    DecodeActions actions;
    if (cancel_first) handoff.OnCancel(actions);
    handoff.OnStreamEnded(absl::UnavailableError("broken"), actions);
    handoff.OnCancel(actions);
    ASSERT_EQ(Count<Fail>(actions), 1u);
    EXPECT_EQ(Find<Fail>(actions)->retry_elsewhere, !cancel_first);
    EXPECT_EQ(Count<ReleasePages>(actions), 1u);
  }
}

TEST_F(DecodeHandoffTest, L1_L3_PagesAreReleasedOnlyAfterOwnReadsHaveEnded) {
  Announce({0, 1});
  handoff_.OnCancel(actions_);
  EXPECT_EQ(Count<ReleasePages>(actions_), 0u);
  Done(0);
  EXPECT_EQ(Count<ReleasePages>(actions_), 0u);
  handoff_.OnReadFailed(1, absl::UnavailableError("closed"), actions_);
  EXPECT_EQ(Count<ReleasePages>(actions_), 1u);
  EXPECT_TRUE(std::holds_alternative<ReleasePages>(actions_.back()));
}

TEST_F(DecodeHandoffTest, I7_ATimeoutClosesAndNeverReleases) {
  Announce({0, 1});
  Pass(milliseconds(60'000), std::nullopt);
  ExpectFailed(true);
  EXPECT_EQ(Count<ClosePeer>(actions_), 1u);
  EXPECT_EQ(Count<ReleasePages>(actions_), 0u);
  handoff_.OnReadFailed(0, absl::UnavailableError("closed"), actions_);
  handoff_.OnReadFailed(1, absl::UnavailableError("closed"), actions_);
  EXPECT_EQ(Count<ReleasePages>(actions_), 1u);
}

TEST_F(DecodeHandoffTest, H7_APeerThatTalksButComputesNothingFails) {
  Pass(milliseconds(900), 17);
  EXPECT_TRUE(handoff_.running());
  Pass(milliseconds(300), 17);
  ExpectFailed(true);
  EXPECT_EQ(Count<ClosePeer>(actions_), 1u);
}

TEST_F(DecodeHandoffTest, APeerThatTakesStepsHasTime) {
  for (uint64_t step = 0; step < 100; ++step) Pass(milliseconds(100), step);
  EXPECT_TRUE(handoff_.running());
}

TEST_F(DecodeHandoffTest, AReadThatNeverEndsClosesThePeerThoughItTalks) {
  Announce({0, 1, 2});
  Done(0), Done(1), Done(2);
  Announce({3, 4});
  Done(3);
  Pass(milliseconds(1200), 17);
  ExpectFailed(true);
  EXPECT_EQ(Count<ClosePeer>(actions_), 1u);
}

TEST_F(DecodeHandoffTest, AReadThatHangsAfterTheEndClosesThePeerOnce) {
  Announce({0});
  handoff_.OnCancel(actions_);
  Pass(milliseconds(900), std::nullopt);
  EXPECT_EQ(Count<ClosePeer>(actions_), 0u);
  Pass(milliseconds(5000), std::nullopt);
  EXPECT_EQ(Count<ClosePeer>(actions_), 1u);
  EXPECT_EQ(Count<ReleasePages>(actions_), 0u);
  handoff_.OnReadFailed(0, absl::UnavailableError("closed"), actions_);
  EXPECT_EQ(Count<ReleasePages>(actions_), 1u);
}

TEST_F(DecodeHandoffTest, WaitingForOurOwnWindowIsNotThePeersFault) {
  TransferWindow::Share hog;
  while (window_.TryTake(hog, kPageBytes)) {
  }
  window_.StopWaiting(hog);
  Announce({0, 1, 2, 3, 4});
  EXPECT_EQ(Count<IssueRead>(actions_), 0u);
  EXPECT_TRUE(handoff_.waiting_for_window());
  Pass(milliseconds(20'000), 17);
  EXPECT_TRUE(handoff_.running());
  window_.Give(hog, 3 * kPageBytes);
  handoff_.OnWindowFree(actions_);
  EXPECT_EQ(Count<IssueRead>(actions_), 3u);
}

TEST_F(DecodeHandoffTest, WhoseOwnLoopWasLateJudgesNobody) {
  now_ += milliseconds(10'000);
  handoff_.OnTick(now_, actions_);
  EXPECT_TRUE(handoff_.running());
}

TEST_F(DecodeHandoffTest, NeverMoreInFlightThanTheWindow) {
  Announce({0, 1, 2, 3, 4});
  EXPECT_EQ(Count<IssueRead>(actions_), 3u);
  Done(1);
  EXPECT_EQ(Count<IssueRead>(actions_), 4u);
  EXPECT_EQ(handoff_.reads_out(), 3u);
  EXPECT_EQ(window_.most_bytes(), 3 * kPageBytes);
}

TEST_F(DecodeHandoffTest, AFailedHandoffIssuesNoReadWhenBytesComeBack) {
  Announce({0, 1, 2, 3, 4});
  handoff_.OnCancel(actions_);
  Done(0);
  handoff_.OnWindowFree(actions_);
  EXPECT_EQ(Count<IssueRead>(actions_), 3u);
  EXPECT_EQ(window_.waiting(), 0u);
}

TEST_F(DecodeHandoffTest, PagesBeforeTheFirstWantedAreDroppedAndCountAsCovered) {
  DecodeHandoff::Options options = Options();
  options.first_page = 3;
  DecodeHandoff handoff(options, window_, now_);
  const std::vector<AnnouncedPage> pages{Page(2, kTokens), Page(3, kTokens), Page(4, kTokens)};
  handoff.OnAnnounced(kAttempt, pages, now_, actions_);
  EXPECT_EQ(handoff.stale_messages(), 1u);
  EXPECT_EQ(Count<IssueRead>(actions_), 2u);
  EXPECT_EQ(handoff.covered_pages(), 3u);
  handoff.OnReadDone(3, testing::Good(3, kTokens), actions_);
  EXPECT_EQ(Count<Complete>(actions_), 0u);
  handoff.OnReadDone(4, testing::Good(4, kTokens), actions_);
  EXPECT_EQ(Count<Complete>(actions_), 1u);
}

TEST_F(DecodeHandoffTest, I12_APageThatCouldNotBeAdoptedFailsWithoutARetry) {
  Announce({0, 1});
  Done(0);
  handoff_.OnAdoptFailed(absl::DataLossError("tag"), actions_);
  ExpectFailed(false);
  EXPECT_EQ(Count<ReleasePages>(actions_), 0u);
  Done(1);
  EXPECT_EQ(Count<ReleasePages>(actions_), 1u);
}

TEST_F(DecodeHandoffTest, I12_TheLastPageThatCouldNotBeAdoptedVoidsComplete) {
  for (uint32_t i = 0; i < 5; ++i) Announce({i}), Done(i);
  ASSERT_TRUE(handoff_.complete());
  actions_.clear();
  handoff_.OnAdoptFailed(absl::DataLossError("tag"), actions_);
  EXPECT_FALSE(handoff_.complete());
  ExpectFailed(false);
  EXPECT_EQ(Count<ReleasePages>(actions_), 1u);
}

TEST_F(DecodeHandoffTest, I12_AnAdoptionThatFailsAfterTheEndChangesNothing) {
  Announce({0, 1});
  Done(0);
  handoff_.OnCancel(actions_);
  handoff_.OnAdoptFailed(absl::DataLossError("tag"), actions_);
  ExpectFailed(false);
  EXPECT_TRUE(absl::IsCancelled(Find<Fail>(actions_)->status));
  Done(1);
}

TEST_F(DecodeHandoffTest, ARefusalGoesOnToTheClientAndIsNotRetried) {
  for (const absl::Status& refusal : {absl::InvalidArgumentError("context"), absl::FailedPreconditionError("layout")}) {
    DecodeHandoff handoff(Options(), window_, now_);
    actions_.clear();
    handoff.OnStreamEnded(refusal, actions_);
    ExpectFailed(false);
    EXPECT_EQ(Find<Fail>(actions_)->status.code(), refusal.code());
  }
}

TEST_F(DecodeHandoffTest, AfterTheEndEveryEventIsHarmless) {
  for (bool complete : {true, false}) {
    auto handoff = std::make_unique<DecodeHandoff>(Options(), window_, now_);
    DecodeActions actions;
    for (uint32_t i = 0; complete && i < 5; ++i) {
      const AnnouncedPage page = Page(i, kTokens);
      handoff->OnAnnounced(kAttempt, {&page, 1}, now_, actions);
      handoff->OnReadDone(i, testing::Good(i, kTokens), actions);
    }
    if (!complete) handoff->OnCancel(actions);
    actions.clear();
    AnnouncedPage beyond = Page(0, kTokens);
    beyond.ordinal = 77;
    handoff->OnAdmitted(kAttempt, now_, actions);
    handoff->OnAnnounced(kAttempt, {&beyond, 1}, now_, actions);
    handoff->OnHeartbeat(kAttempt, 3, now_, actions);
    handoff->OnCancel(actions);
    handoff->OnStreamEnded(absl::UnavailableError("x"), actions);
    handoff->OnWindowFree(actions);
    for (int i = 1; i < 100; ++i) handoff->OnTick(now_ + i * milliseconds(100), actions);
    EXPECT_TRUE(actions.empty());
    EXPECT_EQ(handoff->complete(), complete);
  }
}

TEST_F(DecodeHandoffTest, AReadThatEndsTwiceEndsTheProcess) {
  Announce({0});
  Done(0);
  EXPECT_DEATH(Done(0), "a read ends once");
}

}  // namespace
}  // namespace cofferdam::handoff
