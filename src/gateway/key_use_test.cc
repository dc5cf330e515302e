#include "gateway/key_use.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/error.h"

namespace cofferdam::gateway {
namespace {

using namespace std::chrono_literals;

constexpr KeyUse::Time kStart{std::chrono::hours(1000)};

TEST(KeyUse, WithoutLimitsEverythingIsLetIn) {
  KeyUse use({}, kStart);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_FALSE(use.TakeRequest(kStart).has_value());
    ASSERT_FALSE(use.Start(16, 1'000'000, kStart).has_value());
    use.Charge(1'000'000, kStart);
  }
  EXPECT_TRUE(use.Headers(kStart).empty());
}

TEST(KeyUse, RequestsOfAMinuteMayComeAtOnceAndThenOneByOne) {
  KeyUse use({.requests_per_minute = 30}, kStart);
  for (int i = 0; i < 30; ++i) ASSERT_FALSE(use.TakeRequest(kStart).has_value()) << i;
  const auto refused = use.TakeRequest(kStart);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->code, error_code::kRateLimit);
  EXPECT_EQ(refused->retry_after_s, 3u) << "one of 30 a minute comes every 2 s; a crumb makes it 3";
  EXPECT_TRUE(use.TakeRequest(kStart + 1900ms).has_value());
  EXPECT_FALSE(use.TakeRequest(kStart + 2100ms).has_value());
  EXPECT_TRUE(use.TakeRequest(kStart + 2200ms).has_value());
  EXPECT_FALSE(use.TakeRequest(kStart + 10min).has_value());
}

TEST(KeyUse, WhoHasUsedMoreTokensThanAllowedWaitsForThem) {
  KeyUse use({.tokens_per_minute = 600}, kStart);
  ASSERT_FALSE(use.Start(1, 100, kStart).has_value());
  use.Charge(800, kStart);  // the answer was longer than what was left
  const auto refused = use.Start(1, 100, kStart);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status, 429);
  EXPECT_GE(refused->retry_after_s, 40u);  // 300 owed and 100 for the prompt, at 10 a second
  EXPECT_LE(refused->retry_after_s, 41u);
  EXPECT_TRUE(use.Start(1, 100, kStart + 39s).has_value());
  EXPECT_FALSE(use.Start(1, 100, kStart + 41s).has_value());
}

TEST(KeyUse, APromptOverTheMinutesTokensIsLetInByAFullBucketAlone) {
  KeyUse use({.tokens_per_minute = 600}, kStart);
  ASSERT_FALSE(use.Start(1, 900, kStart).has_value());
  EXPECT_TRUE(use.Start(1, 900, kStart + 89s).has_value());
  EXPECT_FALSE(use.Start(1, 900, kStart + 91s).has_value());
}

TEST(KeyUse, APromptThatNoWorkerTookCostsNothing) {
  KeyUse use({.tokens_per_minute = 600}, kStart);
  for (int i = 0; i < 10; ++i) {
    ASSERT_FALSE(use.Start(1, 500, kStart).has_value());
    use.Refund(500, kStart);
  }
  EXPECT_FALSE(use.Start(1, 600, kStart).has_value());
  EXPECT_TRUE(use.Start(1, 1, kStart).has_value()) << "a refund fills no more than the bucket";
}

TEST(KeyUse, AnswersAtATimeAreCountedEachForItself) {
  const auto use = std::make_shared<KeyUse>(KeyLimits{.concurrency = 4}, kStart);
  {
    ASSERT_FALSE(use->Start(3, 1, kStart).has_value());
    const KeyShare share(use, 3);
    EXPECT_EQ(use->Start(2, 1, kStart)->status, 429);
    ASSERT_FALSE(use->Start(1, 1, kStart).has_value());
    const KeyShare last(use, 1);
    EXPECT_EQ(use->running(), 4u);
  }
  EXPECT_EQ(use->running(), 0u);
  const auto never = use->Start(5, 1, kStart);
  ASSERT_TRUE(never.has_value());
  EXPECT_EQ(never->status, 400) << "waiting would not help";
  EXPECT_EQ(never->param, "n");
}

TEST(KeyUse, AShareThatIsMovedGivesBackOnce) {
  const auto use = std::make_shared<KeyUse>(KeyLimits{.concurrency = 4}, kStart);
  ASSERT_FALSE(use->Start(2, 1, kStart).has_value());
  KeyShare outer;
  {
    KeyShare inner(use, 2);
    outer = std::move(inner);
  }
  EXPECT_EQ(use->running(), 2u);
  outer = KeyShare();
  EXPECT_EQ(use->running(), 0u);
}

TEST(KeyUse, ARefusalTakesNothing) {
  KeyUse use({.tokens_per_minute = 600, .concurrency = 1}, kStart);
  ASSERT_FALSE(use.Start(1, 500, kStart).has_value());
  EXPECT_TRUE(use.Start(1, 50, kStart).has_value());  // concurrency
  use.Finish(1);
  EXPECT_TRUE(use.Start(1, 200, kStart).has_value());  // tokens
  EXPECT_FALSE(use.Start(1, 100, kStart).has_value());
}

TEST(KeyUse, HeadersSayWhatIsLeft) {
  KeyUse use({.requests_per_minute = 60, .tokens_per_minute = 600}, kStart);
  ASSERT_FALSE(use.TakeRequest(kStart).has_value());
  ASSERT_FALSE(use.Start(1, 100, kStart).has_value());
  const HttpHeaders list = use.Headers(kStart);
  std::map<std::string, std::string> headers(list.begin(), list.end());
  EXPECT_EQ(headers["x-ratelimit-limit-requests"], "60");
  EXPECT_EQ(headers["x-ratelimit-remaining-requests"], "59");
  EXPECT_EQ(headers["x-ratelimit-reset-requests"], "1.001s");
  EXPECT_EQ(headers["x-ratelimit-limit-tokens"], "600");
  EXPECT_EQ(headers["x-ratelimit-remaining-tokens"], "500");
  EXPECT_EQ(headers["x-ratelimit-reset-tokens"], "10.001s");
}

TEST(KeyUse, ANewLimitForgetsNothing) {
  KeyUse use({.requests_per_minute = 10, .concurrency = 2}, kStart);
  for (int i = 0; i < 10; ++i) ASSERT_FALSE(use.TakeRequest(kStart).has_value());
  ASSERT_FALSE(use.Start(2, 1, kStart).has_value());
  use.SetLimits({.requests_per_minute = 12, .concurrency = 3}, kStart);
  EXPECT_FALSE(use.TakeRequest(kStart).has_value());
  EXPECT_FALSE(use.TakeRequest(kStart).has_value());
  EXPECT_TRUE(use.TakeRequest(kStart).has_value()) << "10 of the 12 were used before";
  EXPECT_FALSE(use.Start(1, 1, kStart).has_value());
  EXPECT_TRUE(use.Start(1, 1, kStart).has_value());
  use.SetLimits({}, kStart);
  EXPECT_FALSE(use.TakeRequest(kStart).has_value());
}

}  // namespace
}  // namespace cofferdam::gateway
