#include "gateway/key_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace cofferdam::gateway {
namespace {

using testing::HasSubstr;

KeyRecord Full() {
  return {.id = "key-1",
          .hash = HashOfKey("one"),
          .tenant = "acme",
          .domain = "acme-eu",
          .models = {"a", "b/c"},
          .limits = {.requests_per_minute = 60, .tokens_per_minute = 1000, .concurrency = 4, .context_tokens = 512},
          .priority = 3,
          .created = 1'700'000'000};
}

// An entry with one more field.
std::string With(const std::string& field) {
  const std::string hash = HexOfHash(HashOfKey("k"));
  return absl::StrCat(R"({"keys":[{"id":"k","hash":")", hash, R"(","tenant":"t")", field.empty() ? "" : ",", field, "}]}");
}

std::string Refusal(const std::string& text) {
  const auto records = ParseKeyFile(text);
  EXPECT_TRUE(absl::IsInvalidArgument(records.status())) << text;
  return std::string(records.status().message());
}

TEST(KeyFile, WhatIsWrittenIsReadAsItWas) {
  const KeyRecord small{.id = "key-2", .hash = HashOfKey("two"), .tenant = "b", .domain = "b"};
  const std::vector<KeyRecord> records{Full(), small};
  const auto read = ParseKeyFile(RenderKeyFile(records));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, records);
  EXPECT_EQ(RenderKeyFile(records).find("one"), std::string::npos) << "only hashes are kept";
  EXPECT_TRUE(ParseKeyFile(RenderKeyFile({})).ok());
}

TEST(KeyFile, LeavesOutWhatHasADefault) {
  const auto records = ParseKeyFile(With(""));
  ASSERT_TRUE(records.ok()) << records.status();
  const KeyRecord& record = records->at(0);
  EXPECT_EQ(record.domain, "t");
  EXPECT_EQ(record.limits, KeyLimits());
  EXPECT_TRUE(record.Allows("whatever"));
}

TEST(KeyFile, AModelThatIsNotListedIsNotAllowed) {
  EXPECT_TRUE(Full().Allows("b/c"));
  EXPECT_FALSE(Full().Allows("b"));
}

TEST(KeyFile, ALimitThatIsMisspeltIsRefused) {
  EXPECT_THAT(Refusal(With(R"("token_per_minute":5)")), HasSubstr("'token_per_minute'"));
  EXPECT_THAT(Refusal(With(R"("concurrency":"5")")), HasSubstr("'concurrency' must be an integer"));
  EXPECT_THAT(Refusal(With(R"("requests_per_minute":-1)")), HasSubstr("'requests_per_minute'"));
  EXPECT_THAT(Refusal(With(R"("priority":61)")), HasSubstr("'priority'"));
  EXPECT_THAT(Refusal(With(R"("models":[])")), HasSubstr("'models' must not be empty"));
  EXPECT_THAT(Refusal(With(R"("models":[1])")), HasSubstr("'models'"));
  EXPECT_THAT(Refusal(With(R"("domain":"a b")")), HasSubstr("'domain'"));
}

TEST(KeyFile, SaysWhichKeyIsWrong) {
  const std::string one = HexOfHash(HashOfKey("1"));
  const std::string two = HexOfHash(HashOfKey("2"));
  const auto file = [](const std::string& first, const std::string& second, const std::string& id) {
    return absl::StrCat(R"({"keys":[{"id":"a","hash":")", first, R"(","tenant":"t"},{"id":")", id, R"(","hash":")", second,
                        R"(","tenant":"t"}]})");
  };
  EXPECT_TRUE(ParseKeyFile(file(one, two, "b")).ok());
  EXPECT_THAT(Refusal(file(one, one, "b")), HasSubstr("keys[1]: 'hash' is that of an earlier key"));
  EXPECT_THAT(Refusal(file(one, two, "a")), HasSubstr("keys[1]: 'id' is that of an earlier key"));
  EXPECT_THAT(Refusal(file(one, "00", "b")), HasSubstr("keys[1]: 'hash' must be 64 digits"));
  EXPECT_THAT(Refusal(file(one, std::string(64, 'A'), "b")), HasSubstr("64 digits"));
  for (const char* text : {"", "[]", "{}", R"({"keys":{}})", R"({"keys":[],"more":1})", R"({"keys":[1]})", "{\"keys\":[\xff]}"}) {
    EXPECT_NE(Refusal(text), "");
  }
}

TEST(KeyFile, IsReadFromAFileThatNotEverybodyMayWrite) {
  const std::string path = testing::TempDir() + "key_file_test.json";
  std::filesystem::remove(path);
  EXPECT_TRUE(absl::IsNotFound(ReadKeyFile(path).status()));
  std::ofstream(path) << RenderKeyFile({Full()});
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  const auto records = ReadKeyFile(path);
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_EQ(records->at(0), Full());
  ASSERT_EQ(chmod(path.c_str(), 0602), 0);
  EXPECT_THAT(std::string(ReadKeyFile(path).status().message()), HasSubstr("chmod o-w"));
  EXPECT_THAT(std::string(ReadKeyFile(testing::TempDir()).status().message()), HasSubstr("is not a file"));
  std::filesystem::remove(path);
}

TEST(KeyHash, KeysAreLongAndDifferentAndTheirHashesShowNothing) {
  const std::string one = NewApiKey();
  const std::string two = NewApiKey();
  EXPECT_EQ(one.size(), 46u);
  EXPECT_TRUE(one.starts_with("cd-"));
  EXPECT_NE(one, two);
  EXPECT_NE(HashOfKey(one), HashOfKey(two));
  EXPECT_EQ(HashFromHex(HexOfHash(HashOfKey(one))), HashOfKey(one));
  EXPECT_NE(HexOfHash(HashOfKey(one)).substr(0, 32), DomainOfKey(one));
}

}  // namespace
}  // namespace cofferdam::gateway
