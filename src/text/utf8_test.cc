#include "text/utf8.h"

#include <gtest/gtest.h>

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

// Decodes by arithmetic, and checks the result rather than the bytes.
bool NaiveIsValid(const std::string& bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const size_t length = lead < 0x80 ? 1 : (lead >> 5) == 6 ? 2 : (lead >> 4) == 14 ? 3 : (lead >> 3) == 30 ? 4 : 0;
    if (length == 0 || i + length > bytes.size()) return false;
    uint32_t code = length == 1 ? lead : lead & (0x7Fu >> length);
    for (size_t j = 1; j < length; ++j) {
      const auto byte = static_cast<unsigned char>(bytes[i + j]);
      if ((byte >> 6) != 2) return false;
      code = (code << 6) | (byte & 0x3Fu);
    }
    const uint32_t least = length == 1 ? 0 : length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
    if (code < least || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    i += length;
  }
  return true;
}

TEST(Utf8, ValidityAgreesWithANaiveDecoder) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    const std::string bytes = RandomBytes(random);
    ASSERT_EQ(IsValidUtf8(bytes), NaiveIsValid(bytes));
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
