#include "gateway/retry_budget.h"

#include <gtest/gtest.h>

namespace cofferdam::gateway {
namespace {

using std::chrono::seconds;

RetryBudget::Time At(int second) { return RetryBudget::Time(seconds(1'000'000 + second)); }

int Granted(RetryBudget& budget, int second) {
  int count = 0;
  while (count < 1000 && budget.TryRetry(At(second))) ++count;
  return count;
}

TEST(RetryBudget, AFewAreAlwaysAllowed) {
  RetryBudget budget;
  EXPECT_EQ(Granted(budget, 0), 10);
  EXPECT_EQ(Granted(budget, 9), 0);
  EXPECT_EQ(Granted(budget, 10), 10);
}

TEST(RetryBudget, AFifthOfTheRecentRequests) {
  RetryBudget budget;
  for (int i = 0; i < 500; ++i) budget.CountRequest(At(i / 100));
  EXPECT_EQ(Granted(budget, 5), 100);
  EXPECT_EQ(Granted(budget, 5), 0);
  EXPECT_EQ(Granted(budget, 100), 10);
}

}  // namespace
}  // namespace cofferdam::gateway
