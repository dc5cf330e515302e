#include "tenure/time.h"

#include <gtest/gtest.h>

namespace cofferdam::tenure {
namespace {

constexpr Micros kSecond = 1'000'000;
constexpr Micros kNow = 1'796'126'400 * kSecond;  // 2026-12-01T12:00:00Z

TEST(TimeTest, ReadsWhatItWrites) {
  EXPECT_EQ(FormatTime(kNow + 5), "2026-12-01T12:00:00.000005Z");
  EXPECT_EQ(ParseTime("2026-12-01T12:00:00.000005Z", 0).value(), kNow + 5);
  EXPECT_EQ(ParseTime("2026-12-01T12:00:00Z", 0).value(), kNow);
  EXPECT_EQ(ParseTime("2026-12-01T14:00:00+02:00", 0).value(), kNow);
  EXPECT_EQ(ParseTime("2026-12-01", 0).value(), kNow - kSecond * 12 * 3600);
}

TEST(TimeTest, DurationsAreCountedBackFromNow) {
  EXPECT_EQ(ParseTime("90s", kNow).value(), kNow - 90 * kSecond);
  EXPECT_EQ(ParseTime("90m", kNow).value(), kNow - kSecond * 90 * 60);
  EXPECT_EQ(ParseTime("24h", kNow).value(), kNow - kSecond * 24 * 3600);
  EXPECT_EQ(ParseTime("7d", kNow).value(), kNow - kSecond * 7 * 86400);
  EXPECT_EQ(ParseTime("9999999d", kNow).value(), 0);
}

TEST(TimeTest, WhatIsNoTimeIsRefused) {
  for (const char* text : {"", "d", "7", "7w", "-7d", "+7d", "7 d", "1.5h", "99999999d", "yesterday", "infinite-past", "2026-13-01",
                           "2026-12-01T25:00:00Z", "2026-12-01T12:00:00", "2026-12-01T12:00:00Z;", "1969-12-31", "20261201"}) {
    EXPECT_FALSE(ParseTime(text, kNow).ok()) << text;
  }
}

}  // namespace
}  // namespace cofferdam::tenure
