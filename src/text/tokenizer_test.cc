#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "text/utf8.h"

namespace cofferdam::text {
namespace {

std::unique_ptr<const Tokenizer> LoadVocabulary(const std::string& name) {
  auto tokenizer = Tokenizer::Load(std::string(COFFERDAM_VOCABULARIES) + "/ggml-vocab-" + name + ".gguf");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

struct Example {
  std::string text;
  std::vector<TokenId> tokens;
};

std::vector<Example> Examples(const std::string& name) {
  const std::string base = std::string(COFFERDAM_VOCABULARIES) + "/ggml-vocab-" + name + ".gguf";
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::string inputs = Slurp(base + ".inp");
  std::istringstream outputs(Slurp(base + ".out"));
  std::vector<Example> examples;
  for (std::string line; std::getline(outputs, line);) {
    const size_t end = inputs.find(separator);
    Example example{inputs.substr(0, end), {}};
    std::istringstream numbers(line);
    for (TokenId id; numbers >> id;) example.tokens.push_back(id);
    examples.push_back(std::move(example));
    if (end == std::string::npos) break;
    inputs.erase(0, end + separator.size());
  }
  return examples;
}

class Vocabulary : public testing::TestWithParam<const char*> {};

TEST_P(Vocabulary, TokenizesAsItsFamilyDoes) {
  const auto tokenizer = LoadVocabulary(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<Example> examples = Examples(GetParam());
  ASSERT_GT(examples.size(), 30u);
  for (const Example& example : examples) {
    const auto tokens = tokenizer->Tokenize(example.text, false, false);
    ASSERT_TRUE(tokens.ok());
    EXPECT_EQ(*tokens, example.tokens) << example.text;
  }
}

TEST_P(Vocabulary, BytesOfTokensAreTheText) {
  const auto tokenizer = LoadVocabulary(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const std::string text = "Grüße aus Zürich: 東京 😀 done.";
  const auto tokens = tokenizer->Tokenize(text, false, false);
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokenizer->Detokenize(*tokens, false), text);
}

INSTANTIATE_TEST_SUITE_P(Families, Vocabulary, testing::Values("qwen2", "llama-bpe", "llama-spm", "phi-3", "gpt-2"));

TEST(Tokenizer, SpacesBeforeTheFirstWordComeBack) {
  const auto tokenizer = LoadVocabulary("llama-spm");
  ASSERT_NE(tokenizer, nullptr);
  for (const std::string text : {"a", " a", "  a", "   a", " ", " \n a"}) {
    EXPECT_EQ(tokenizer->Detokenize(*tokenizer->Tokenize(text, false, false), false), text) << "'" << text << "'";
  }
}

TEST(Tokenizer, SpecialTokensAreTextUnlessAsked) {
  const auto tokenizer = LoadVocabulary("qwen2");
  ASSERT_NE(tokenizer, nullptr);
  const auto control = tokenizer->Tokenize("<|im_end|>", false, true);
  ASSERT_EQ(control->size(), 1u);
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(control->front()));
  EXPECT_EQ(tokenizer->TokenBytes(control->front(), false), "");
  EXPECT_EQ(tokenizer->TokenBytes(control->front(), true), "<|im_end|>");
  EXPECT_GT(tokenizer->Tokenize("<|im_end|>", false, false)->size(), 1u);
  EXPECT_FALSE(tokenizer->end_of_generation_tokens().empty());
}

TEST(Tokenizer, ForeignIdsAreHarmless) {
  const auto tokenizer = LoadVocabulary("llama-spm");
  ASSERT_NE(tokenizer, nullptr);
  for (const TokenId id : {-1, tokenizer->vocabulary_size(), INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(tokenizer->IsToken(id));
    EXPECT_FALSE(tokenizer->IsEndOfGeneration(id));
    EXPECT_EQ(tokenizer->TokenBytes(id, true), "");
  }
}

TEST(Tokenizer, RefusesFilesThatAreNoModel) {
  EXPECT_EQ(Tokenizer::Load("/nonexistent.gguf").status().code(), absl::StatusCode::kNotFound);
  const std::string folder = testing::TempDir();
  std::ofstream(folder + "/cd_text.gguf") << "hello";
  EXPECT_EQ(Tokenizer::Load(folder + "/cd_text.gguf").status().code(), absl::StatusCode::kInvalidArgument);
  const std::string whole = Slurp(std::string(COFFERDAM_VOCABULARIES) + "/ggml-vocab-llama-spm.gguf");
  for (const size_t size : {size_t{4}, size_t{30}, size_t{5000}, whole.size() / 2}) {
    std::ofstream(folder + "/cd_cut.gguf", std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    EXPECT_EQ(Tokenizer::Load(folder + "/cd_cut.gguf").status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
}

TEST(Tokenizer, IsThreadSafe) {
  const auto tokenizer = LoadVocabulary("qwen2");
  ASSERT_NE(tokenizer, nullptr);
  const auto expected = tokenizer->Tokenize("many threads, one vocabulary", true, true);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        EXPECT_EQ(*tokenizer->Tokenize("many threads, one vocabulary", true, true), *expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Tokenizer, ReadsAWholeModel) {
  const char* folder = std::getenv("COFFERDAM_TEST_MODELS");
  if (folder == nullptr) GTEST_SKIP() << "COFFERDAM_TEST_MODELS is not set";
  const auto tokenizer = Tokenizer::Load(std::string(folder) + "/stories260K.gguf");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocabulary_size(), 512);
  EXPECT_EQ((*tokenizer)->trained_context(), 512u);
  EXPECT_EQ((*tokenizer)->bos(), 1);
  EXPECT_EQ((*tokenizer)->eos(), 2);
  const auto tokens = (*tokenizer)->Tokenize("Once upon a time", true, false);
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokens->front(), 1);
  EXPECT_EQ((*tokenizer)->Detokenize(*tokens, false), "Once upon a time");
}

}  // namespace
}  // namespace cofferdam::text
