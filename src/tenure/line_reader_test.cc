#include "tenure/line_reader.h"

#include <gtest/gtest.h>

#include "tenure/testing.h"

namespace cofferdam::tenure {
namespace {

using Result = LineReader::Result;

class LineReaderTest : public testing::Test {
 protected:
  std::string Put(const std::string& text) {
    std::string path = folder_.path() + "/file";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  static void ExpectLine(LineReader& reader, std::string_view expected) {
    std::string_view line;
    EXPECT_EQ(reader.Next(line), Result::kLine);
    EXPECT_EQ(line, expected);
  }
  static void Expect(LineReader& reader, Result result) {
    std::string_view line;
    EXPECT_EQ(reader.Next(line), result);
  }

  TempFolder folder_;
};

TEST_F(LineReaderTest, LinesComeOneByOneAndEmptyOnesToo) {
  LineReader reader(Put("one\n\ntwo\n"));
  ExpectLine(reader, "one");
  ExpectLine(reader, "");
  ExpectLine(reader, "two");
  Expect(reader, Result::kEnd);
  Expect(reader, Result::kEnd);
  EXPECT_EQ(reader.bytes(), 9u);
}

TEST_F(LineReaderTest, LinesAcrossReadsAreWhole) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += std::to_string(i) + "\n";
  LineReader reader(Put(text));
  std::string_view line;
  for (int i = 0; i < 200'000; ++i) {
    ASSERT_EQ(reader.Next(line), Result::kLine);
    ASSERT_EQ(line, std::to_string(i));
  }
  Expect(reader, Result::kEnd);
}

TEST_F(LineReaderTest, BytesWithoutANewlineAtTheEndAreNoLine) {
  LineReader reader(Put("one\ntw"));
  ExpectLine(reader, "one");
  Expect(reader, Result::kCutOff);
  Expect(reader, Result::kEnd);
}

TEST_F(LineReaderTest, ALineOfTheGreatestLengthIsRead) {
  const std::string line(kMaxLineBytes, 'x');
  LineReader reader(Put(line + "\n" + line + "x\nnext\n"));
  ExpectLine(reader, line);
  Expect(reader, Result::kTooLong);
  ExpectLine(reader, "next");
}

// What stands at the end of a line that is too long never passes for a line of its own.
TEST_F(LineReaderTest, TheRestOfALineThatIsTooLongIsPassedOverWithIt) {
  for (const size_t length :
       {kMaxLineBytes + 1, kMaxLineBytes + (size_t{256} << 10), kMaxLineBytes + (size_t{512} << 10), 3 * kMaxLineBytes}) {
    LineReader reader(Put(std::string(length, 'x') + "tail\nnext\n"));
    Expect(reader, Result::kTooLong);
    ExpectLine(reader, "next");
    Expect(reader, Result::kEnd);
  }
  LineReader reader(Put(std::string(2 * kMaxLineBytes, 'x')));
  Expect(reader, Result::kCutOff);
  Expect(reader, Result::kEnd);
}

TEST_F(LineReaderTest, NothingBehindTheLimitIsRead) {
  LineReader reader(Put("one\ntwo\nthree\n"), 8);
  ExpectLine(reader, "one");
  ExpectLine(reader, "two");
  Expect(reader, Result::kEnd);
}

TEST_F(LineReaderTest, WhatIsNoFileFailsWithItsReason) {
  LineReader absent(folder_.path() + "/absent");
  Expect(absent, Result::kFailed);
  EXPECT_EQ(absent.error(), "No such file or directory");
  LineReader folder(folder_.path());
  Expect(folder, Result::kFailed);
  EXPECT_EQ(folder.error(), "not a regular file");
}

}  // namespace
}  // namespace cofferdam::tenure
