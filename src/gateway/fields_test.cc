#include "gateway/fields.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "gateway/openai_request.h"

namespace cofferdam::gateway {
namespace {

TEST(Fields, TheFirstFaultIsKept) {
  const Json object = {{"a", "x"}, {"b", 5}, {"c", nullptr}};
  Fields fields(object);
  EXPECT_EQ(fields.Number("b", 1, {0, 10}), 5);
  EXPECT_EQ(fields.Number("c", 7, {0, 10}), 7);
  EXPECT_EQ(fields.Number("missing", 7, {0, 10}), 7);
  EXPECT_FALSE(fields.error().has_value());
  fields.Number("a", 1, {0, 10});
  fields.Integer("b", {6, 10});
  ASSERT_TRUE(fields.error().has_value());
  EXPECT_EQ(fields.error()->param, "a");
}

// Workers judge the float; what is over 0 as a double may be 0 as one.
TEST(Fields, AFloatIsJudgedAsItIsPassedOn) {
  const Json object = {{"small", 1e-60}};
  Fields fields(object);
  EXPECT_EQ(fields.Float("small", 1, {0, 1}), 0);
  EXPECT_FALSE(fields.error().has_value());
  fields.Float("small", 1, {0, 1, true});
  ASSERT_TRUE(fields.error().has_value());
  EXPECT_EQ(fields.error()->message, "'small' must be over 0 and up to 1.");
}

TEST(Fields, DepthIsCountedOutsideOfStrings) {
  const std::string brackets(200, '[');
  EXPECT_TRUE(std::holds_alternative<Json>(ParseObject("{\"a\":\"" + brackets + "\\\"" + brackets + "\"}")));
  EXPECT_TRUE(std::holds_alternative<ApiError>(ParseObject("{\"a\":" + brackets)));
}

// Bodies of random fields and values: an answer or a refusal that names a field, never an exception.
TEST(Fields, RandomBodiesNeverThrow) {
  static const char* const kNames[] = {"prompt",      "messages", "max_tokens", "stop",   "logit_bias",      "stream_options",
                                       "temperature", "seed",     "n",          "tools",  "response_format", "stop_token_ids",
                                       "stream",      "model",    "role",       "content"};
  std::mt19937_64 random(5);
  const auto value = [&](auto&& self, int depth) -> Json {
    switch (random() % (depth > 3 ? 6 : 9)) {
      case 0:
        return nullptr;
      case 1:
        return static_cast<int64_t>(random());
      case 2:
        return static_cast<double>(random() % 100) / 7;
      case 3:
        return random() % 2 == 0;
      case 4:
        return "text";
      case 5:
        return random();
      case 6:
        return Json::array({self(self, depth + 1), self(self, depth + 1)});
      case 7:
        return Json{{"role", "user"}, {"content", self(self, depth + 1)}};
      default:
        return Json{{kNames[random() % std::size(kNames)], self(self, depth + 1)}, {"5", self(self, depth + 1)}};
    }
  };
  for (int round = 0; round < 20000; ++round) {
    Json body = Json::object();
    for (int i = 0; i < 4; ++i) body[kNames[random() % std::size(kNames)]] = value(value, 0);
    const auto result = ParseCompletion(body, random() % 2 == 0, 1000);
    if (const ApiError* error = std::get_if<ApiError>(&result)) {
      ASSERT_EQ(error->status, 400);
      ASSERT_FALSE(error->param.empty());
    }
  }
}

}  // namespace
}  // namespace cofferdam::gateway
