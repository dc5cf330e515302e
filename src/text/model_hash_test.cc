#include "text/model_hash.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace cofferdam::text {
namespace {

std::string Write(const std::string& name, const std::string& content) {
  std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  return path;
}

TEST(ModelHash, IsXxh3OfTheContent) {
  EXPECT_EQ(*ModelHash(Write("cd_empty.gguf", "")), "99aa06d3014798d86001c324468d497f");  // XXH3-128 of nothing
  const std::string one = *ModelHash(Write("cd_one.gguf", "one"));
  EXPECT_EQ(one.size(), 32u);
  EXPECT_NE(one, *ModelHash(Write("cd_two.gguf", "two")));
  EXPECT_EQ(one, *ModelHash(Write("cd_copy.gguf", "one")));
}

TEST(ModelHash, CoversEveryWindow) {
  std::string big((size_t{64} << 20) + 5, 'x');
  const std::string before = *ModelHash(Write("cd_big.gguf", big));
  big.back() = 'y';
  EXPECT_NE(before, *ModelHash(Write("cd_big.gguf", big)));
  std::remove((testing::TempDir() + "/cd_big.gguf").c_str());
}

TEST(ModelHash, CoversAllPartsInOrder) {
  const std::string first = Write("cd_split-00001-of-00002.gguf", "ab");
  const std::string second = testing::TempDir() + "/cd_split-00002-of-00002.gguf";
  std::remove(second.c_str());
  EXPECT_EQ(ModelHash(first).status().code(), absl::StatusCode::kNotFound);
  Write("cd_split-00002-of-00002.gguf", "cd");
  EXPECT_EQ(*ModelHash(first), *ModelHash(Write("cd_joined.gguf", "abcd")));
  EXPECT_EQ(ModelHash(second).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ModelHash, AMissingFileIsAnError) { EXPECT_EQ(ModelHash("/nonexistent.gguf").status().code(), absl::StatusCode::kNotFound); }

}  // namespace
}  // namespace cofferdam::text
