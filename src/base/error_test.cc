#include "base/error.h"

#include <gtest/gtest.h>

namespace cofferdam {
namespace {

TEST(ErrorFacts, SurviveTransportUnchanged) {
  const ErrorFacts facts{.code = "a:b", .param = "", .requested = 123456789012ULL, .limit = 7, .retry_after_s = 3};
  EXPECT_EQ(ParseFacts(SerializeFacts(facts)), facts);
  EXPECT_EQ(FactsOf(WithFacts(absl::InternalError("x"), facts)), facts);
}

TEST(ErrorFacts, RefuseWhatIsNotTheirs) {
  for (const char* text : {"", ":", "1:", "-1:x", "9999:x", "1:a0:1:11:11:1x", "1:a0:1:x1:11:1"}) {
    EXPECT_EQ(ParseFacts(text), std::nullopt) << text;
  }
  EXPECT_EQ(FactsOf(absl::InternalError("bare")), std::nullopt);
}

TEST(ErrorFacts, ContextLengthExceededNamesBothNumbers) {
  const absl::Status status = ContextLengthExceeded("prefill worker", 900, 100, 512);
  EXPECT_NE(std::string(status.message()).find("512"), std::string::npos);
  EXPECT_NE(std::string(status.message()).find("1000"), std::string::npos);
  EXPECT_EQ(FactsOf(status)->limit, 512u);
  EXPECT_EQ(FactsOf(status)->requested, 1000u);
}

}  // namespace
}  // namespace cofferdam
