#include "gateway/http_message.h"

#include <gtest/gtest.h>

namespace cofferdam::gateway {
namespace {

TEST(HttpMessage, PathsAreDecodedAndCut) {
  EXPECT_EQ(PathOf("/v1/models?x=1"), "/v1/models");
  EXPECT_EQ(PathOf("/v1/models/a%2Fb"), "/v1/models/a/b");
  EXPECT_EQ(PathOf("/%41"), "/A");
  EXPECT_EQ(PathOf("*"), "*");
  for (const char* broken : {"", "x", "http://x/", "/%", "/%4", "/%zz", "/a%4"}) EXPECT_EQ(PathOf(broken), std::nullopt) << broken;
}

TEST(HttpMessage, HeadAnswersHaveNoBody) {
  Framing framing;
  framing.head_only = true;
  const std::string bytes = RenderReply(JsonReply("{}"), framing);
  EXPECT_NE(bytes.find("Content-Length: 2\r\n"), std::string::npos);
  EXPECT_TRUE(bytes.ends_with("\r\n\r\n"));
}

TEST(HttpMessage, ChunksAreFramed) {
  const Framing modern;
  EXPECT_EQ(RenderChunk("0123456789abcdef", modern), "10\r\n0123456789abcdef\r\n");
  EXPECT_EQ(RenderChunk("", modern), "");  // an empty chunk would end the body
  Framing old;
  old.http_1_0 = true;
  EXPECT_EQ(RenderChunk("x", old), "x");
  EXPECT_EQ(RenderLastChunk(old), "");
}

TEST(HttpMessage, ErrorsCarryTheirHeaders) {
  const std::string busy = RenderReply(ErrorReply(HttpError(429, "busy", "queue_full")), Framing());
  EXPECT_NE(busy.find("429 Too Many Requests"), std::string::npos);
  EXPECT_NE(busy.find("Retry-After: 1\r\n"), std::string::npos);
  EXPECT_NE(busy.find(R"({"error":{"message":"busy","type":"rate_limit_error","param":null,"code":"queue_full"}})"),
            std::string::npos);
}

}  // namespace
}  // namespace cofferdam::gateway
