#include "handoff/transfer_window.h"

#include <gtest/gtest.h>

namespace cofferdam::handoff {
namespace {

using Share = TransferWindow::Share;

TEST(TransferWindowTest, AdmitsOnePageHoweverSmallItIs) {
  TransferWindow cap(1), window(1, &cap);
  Share share;
  EXPECT_TRUE(window.TryTake(share, 4096));
  EXPECT_FALSE(window.TryTake(share, 4096));
  window.Give(share, 4096);
  EXPECT_TRUE(window.TryTake(share, 4096));
  window.Give(share, 4096);
  EXPECT_EQ(cap.in_flight_bytes(), 0u);
}

TEST(TransferWindowTest, NeverGoesOverItsLimitOrTheCap) {
  TransferWindow cap(50), a(40, &cap), b(40, &cap);
  Share of_a, of_b;
  int taken = 0;
  while (a.TryTake(of_a, 10)) ++taken;
  EXPECT_EQ(taken, 4);
  EXPECT_TRUE(b.TryTake(of_b, 10));
  EXPECT_FALSE(b.TryTake(of_b, 10));  // the cap
  EXPECT_EQ(cap.in_flight_bytes(), 50u);
  EXPECT_EQ(cap.most_bytes(), 50u);
  EXPECT_EQ(b.most_bytes(), 10u);
  a.Give(of_a, 40);
  b.StopWaiting(of_b);
  b.Give(of_b, 10);
  EXPECT_EQ(cap.in_flight_bytes() + a.in_flight_bytes() + b.in_flight_bytes(), 0u);
}

TEST(TransferWindowTest, WhoFillsItGivesWayToWhoWaits) {
  TransferWindow window(40);
  Share greedy, other;
  while (window.TryTake(greedy, 10)) {
  }
  window.StopWaiting(greedy);
  EXPECT_FALSE(window.TryTake(other, 10));
  EXPECT_TRUE(other.waiting());
  window.Give(greedy, 10);
  EXPECT_FALSE(window.TryTake(greedy, 10)) << "it holds 30 of 40, and another waits";
  EXPECT_TRUE(window.TryTake(other, 10));
  window.Give(greedy, 10);
  EXPECT_TRUE(window.TryTake(other, 10)) << "an equal part of two";
  EXPECT_FALSE(window.TryTake(other, 10)) << "the window is full";
}

TEST(TransferWindowTest, WhoFillsAPeersWindowGivesWayAcrossPeersToo) {
  TransferWindow cap(40), a(40, &cap), b(40, &cap);
  Share of_a, of_b;
  while (a.TryTake(of_a, 10)) {
  }
  a.StopWaiting(of_a);
  EXPECT_FALSE(b.TryTake(of_b, 10));
  EXPECT_EQ(cap.waiting(), 1u);
  a.Give(of_a, 10);
  EXPECT_FALSE(a.TryTake(of_a, 10));
  EXPECT_TRUE(b.TryTake(of_b, 10));
}

TEST(TransferWindowTest, WhoNoLongerWaitsCountsNoMore) {
  TransferWindow window(40);
  Share greedy, other;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(window.TryTake(greedy, 10));
  EXPECT_FALSE(window.TryTake(other, 10));
  window.StopWaiting(other);
  window.Give(greedy, 10);
  EXPECT_TRUE(window.TryTake(greedy, 10));
}

TEST(TransferWindowDeathTest, MoreThanWasTakenDoesNotComeBack) {
  TransferWindow window(40);
  Share share;
  ASSERT_TRUE(window.TryTake(share, 10));
  EXPECT_DEATH(window.Give(share, 20), "gets back what was taken");
  window.Give(share, 10);
}

}  // namespace
}  // namespace cofferdam::handoff
