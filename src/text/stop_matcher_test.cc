#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace cofferdam::text {
namespace {

// Byte by byte: as soon as the text so far ends with stop strings, the longest of them is cut off.
struct Naive {
  std::string shown;
  bool stopped;
};
Naive WholeText(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(StopMatcher, FindsAStopAcrossPieces) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.Feed("say E"), "say ");
  EXPECT_EQ(matcher.Feed("N"), "");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.Feed("D and more"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "END");
  EXPECT_EQ(matcher.Feed("nothing more"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, ReleasesAFalseStart) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.Feed("EN"), "");
  EXPECT_EQ(matcher.Feed("TER"), "ENTER");
  EXPECT_EQ(matcher.Feed("E"), "");
  EXPECT_EQ(matcher.Finish(), "E");
}

TEST(StopMatcher, ARepeatedBeginningIsNotLost) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(matcher.Feed("aaa"), "a");
  EXPECT_EQ(matcher.Feed("b"), "");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcher, WithoutStopsEverythingPasses) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.Feed("x"), "x");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, AgreesWithTheNaiveModelAtEveryCut) {
  std::mt19937_64 random(3);
  const auto word = [&random](size_t least, size_t most) {
    std::string out;
    const size_t length = least + random() % (most - least + 1);
    for (size_t i = 0; i < length; ++i) out += static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    const size_t count = 1 + random() % 3;
    for (size_t i = 0; i < count; ++i) stops.push_back(word(1, 4));
    const std::string text = word(0, 14);
    const Naive expected = WholeText(text, stops);
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      StopMatcher matcher(stops);
      std::string shown = matcher.Feed(text.substr(0, cut));
      shown += matcher.Feed(text.substr(cut));
      shown += matcher.Finish();
      ASSERT_EQ(shown, expected.shown) << text << " cut at " << cut;
      ASSERT_EQ(matcher.stopped(), expected.stopped);
    }
    StopMatcher single(stops);
    std::string shown;
    for (const char byte : text) shown += single.Feed(std::string_view(&byte, 1));
    ASSERT_EQ(shown + single.Finish(), expected.shown);
  }
}

}  // namespace
}  // namespace cofferdam::text
