#include "engine/verify.h"

#include <gtest/gtest.h>

namespace cofferdam::engine {
namespace {

TEST(VerifyReads, EveryModeIsReadBackAsItIsWritten) {
  for (const char* text : {"tags", "full", "sampled:1", "sampled:16", "sampled:65536"}) {
    const auto verify = ParseVerifyReads(text);
    ASSERT_TRUE(verify.ok()) << verify.status();
    EXPECT_EQ(ToString(*verify), text);
  }
}

TEST(VerifyReads, ThereIsNoOff) {
  for (const char* text : {"", "off", "none", "TAGS", "sampled", "sampled:", "sampled:0", "sampled:-1", "sampled:+1", "sampled: 4",
                           "sampled:65537", "sampled:99999999999999999999", "sampled:4x", "full ", "tags,full"}) {
    EXPECT_EQ(ParseVerifyReads(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace cofferdam::engine
