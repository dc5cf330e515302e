#include "base/log.h"

#include <gtest/gtest.h>

namespace cofferdam::log {
namespace {

TEST(LogTest, AMessageOfAnyBytesStaysOneJsonString) {
  EXPECT_EQ(EscapeJson("plain"), "plain");
  EXPECT_EQ(EscapeJson("a \"b\" \\ c"), "a \\\"b\\\" \\\\ c");
  EXPECT_EQ(EscapeJson("two\nlines\t\x01"), "two\\u000alines\\u0009\\u0001");
}

}  // namespace
}  // namespace cofferdam::log
