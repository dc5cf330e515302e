#include "text/utf8.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include <random>
#include <string>

namespace cofferdam::text {
namespace {

std::string Whole(std::string_view bytes) {
  Utf8Stream stream;
  std::string out = stream.Feed(bytes);
  return out + stream.Finish();
}

// Pieces that make borders, valid and broken characters likely.
std::string RandomBytes(std::mt19937_64& random) {
  static const std::string kPieces[] = {"a",        "\xC3\xA4",     "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xF0\x9F", "\xE2",
                                        "\x80",     "\xC0\x80",     "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF",     "z\n",
                                        "\xEF\xBF", "\xEF\xBF\xBD", "\xC3",         "\xF0\x9F\x98"};
  std::string out;
  const size_t pieces = random() % 9;
  for (size_t i = 0; i < pieces; ++i) out += kPieces[random() % std::size(kPieces)];
  return out;
}

TEST(Utf8, HoldsBackAnUnfinishedCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Feed("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.held_bytes(), 2u);
  EXPECT_EQ(stream.Feed("\x98"), "");
  EXPECT_EQ(stream.Feed("\x80z"), "\xF0\x9F\x98\x80z");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(Utf8, ReplacesEachIllFormedPartOnce) {
  EXPECT_EQ(Whole("\xFFz"), std::string(kReplacement) + "z");
  EXPECT_EQ(Whole("\xE2\x82z"), std::string(kReplacement) + "z");
  EXPECT_EQ(Whole("\xF0\x9F\x98"), kReplacement);
  // A surrogate: its second byte cannot follow, so that three parts are ill-formed.
  EXPECT_EQ(Whole("\xED\xA0\x80"), std::string(kReplacement) + std::string(kReplacement) + std::string(kReplacement));
}

TEST(Utf8, ValidityAgreesWithSimdjson) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    const std::string bytes = RandomBytes(random);
    ASSERT_EQ(IsValidUtf8(bytes), simdjson::validate_utf8(bytes));
  }
}

TEST(Utf8, TextDoesNotDependOnCuts) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 3000; ++round) {
    const std::string bytes = RandomBytes(random);
    const std::string expected = Whole(bytes);
    ASSERT_TRUE(IsValidUtf8(expected));
    if (IsValidUtf8(bytes)) {
      ASSERT_EQ(expected, bytes);
    }
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      Utf8Stream stream;
      std::string out = stream.Feed(bytes.substr(0, cut));
      ASSERT_TRUE(IsValidUtf8(out));
      out += stream.Feed(bytes.substr(cut));
      ASSERT_EQ(out + stream.Finish(), expected);
    }
    Utf8Stream single;
    std::string out;
    for (const char byte : bytes) out += single.Feed(std::string_view(&byte, 1));
    ASSERT_EQ(out + single.Finish(), expected);
  }
}

}  // namespace
}  // namespace cofferdam::text
