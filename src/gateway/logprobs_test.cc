#include "gateway/logprobs.h"

#include <gtest/gtest.h>

namespace cofferdam::gateway {
namespace {

std::vector<TokenId> Ids(const std::vector<LogprobQueue::Entry>& entries) {
  std::vector<TokenId> ids;
  for (const LogprobQueue::Entry& entry : entries) ids.push_back(entry.token.token);
  return ids;
}

TokenLogprobs Of(TokenId token) { return {.token = token, .logprob = -1}; }

using Tokens = std::vector<TokenId>;

TEST(LogprobQueue, ATokenComesWithTheEndOfItsText) {
  LogprobQueue queue;
  queue.Push(Of(1), 0, 3);
  queue.Push(Of(2), 3, 5);
  EXPECT_EQ(Ids(queue.TakeShown(2)), Tokens());
  EXPECT_EQ(Ids(queue.TakeShown(4)), Tokens({1}));
  queue.Push(Of(3), 5, 5);  // no text of its own
  EXPECT_EQ(Ids(queue.TakeShown(5)), Tokens({2, 3}));
  EXPECT_EQ(Ids(queue.TakeLast(5)), Tokens());
}

TEST(LogprobQueue, WhatAStopStringCutsOffIsNotToldOf) {
  LogprobQueue queue;
  queue.Push(Of(1), 0, 3);
  queue.Push(Of(2), 3, 6);
  queue.Push(Of(3), 6, 9);
  EXPECT_EQ(Ids(queue.TakeLast(4)), Tokens({1, 2}));  // a part of the second is shown
  EXPECT_EQ(Ids(queue.TakeLast(9)), Tokens());
}

TEST(LogprobQueue, ACutBetweenTokensDropsAllThatFollow) {
  LogprobQueue queue;
  queue.Push(Of(1), 0, 3);
  queue.Push(Of(2), 3, 6);
  EXPECT_EQ(Ids(queue.TakeLast(3)), Tokens({1}));
}

TEST(LogprobQueue, NothingShownIsNoToken) {
  LogprobQueue queue;
  queue.Push(Of(1), 0, 3);
  EXPECT_EQ(Ids(queue.TakeLast(0)), Tokens());
}

}  // namespace
}  // namespace cofferdam::gateway
