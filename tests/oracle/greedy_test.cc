// Greedy text of a real trained model, ours against libllama's, token by token.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "runners.h"

namespace cofferdam::oracle {
namespace {

constexpr size_t kTokens = 256;
// f32 weights; what differs is the order of sums, and that libllama rounds Q and the attention weights to f16, which we
// keep in f32: about 5e-4 of the largest weight each. Logits here reach 20, so 0.05 is ample and still far below the
// usual distance of the two best.
constexpr float kTolerance = 0.05f;

class Greedy : public testing::Test {
 protected:
  void SetUp() override {
    const auto path = StoriesPath();
    if (!path) GTEST_SKIP() << "COFFERDAM_TEST_MODELS does not name a folder with stories260K.gguf";
    path_ = *path;
    libllama_.emplace(path_);
  }

  // A token may differ only where libllama's two best lie closer together than the tolerance; after such a place the
  // texts go different ways and nothing is left to compare.
  void ExpectSame(const Tokens& got, const Tokens& wanted, const std::vector<float>& margins, const std::string& what) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (got[i] == wanted[i]) continue;
      ++near_ties_;
      EXPECT_LT(margins[i], kTolerance) << what << ": token " << i << " is " << got[i] << ", libllama says " << wanted[i];
      return;
    }
  }

  void TearDown() override {
    if (!path_.empty()) std::printf("near ties that went the other way: %zu\n", near_ties_);
  }

  std::string path_;
  std::optional<Libllama> libllama_;
  size_t near_ties_ = 0;
};

TEST_F(Greedy, TellsThePublishedStory) {
  Ours ours(path_, {}, 1, 512);
  const Tokens prompt = libllama_->Tokenize("Once upon a time");
  const std::string text = libllama_->Text(ours.Greedy(0, prompt, 100, prompt.size()));
  EXPECT_TRUE(text.starts_with(
      ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, "
      "red ball. She wanted to play with it, but it was too high.\nLily's mom said, \"Lily, let's go to the park.\""))
      << text;
}

TEST_F(Greedy, SingleRequestsMatchLibllama) {
  Ours ours(path_, {}, 1, 512);
  for (const char* text : {"Once upon a time", "Tom and his dog", "The", "One day, a big bear went to the sea and"}) {
    ours.Reset();
    std::vector<float> margins;
    const Tokens prompt = libllama_->Tokenize(text);
    const Tokens wanted = libllama_->Greedy(prompt, kTokens, &margins);
    ExpectSame(ours.Greedy(0, prompt, kTokens, 512), wanted, margins, text);
  }
}

TEST_F(Greedy, PromptsCutAtEveryBoundaryMatchLibllama) {
  Ours ours(path_, {}, 1, 512);
  std::vector<float> margins;
  const Tokens prompt = libllama_->Tokenize("Once upon a time there was a small cat who wanted to see the moon");
  const Tokens wanted = libllama_->Greedy(prompt, 64, &margins);
  for (size_t chunk = 1; chunk <= prompt.size(); ++chunk) {
    ours.Reset();
    ExpectSame(ours.Greedy(0, prompt, 64, chunk), wanted, margins, "chunks of " + std::to_string(chunk));
  }
}

TEST_F(Greedy, BatchesOfThirtyTwoMatchLibllama) {
  constexpr uint32_t kBatch = 32;
  Ours ours(path_, {}, kBatch, 512);
  std::vector<Ours::Piece> pieces;
  std::vector<Tokens> wanted(kBatch), got(kBatch);
  std::vector<std::vector<float>> margins(kBatch);
  for (uint32_t i = 0; i < kBatch; ++i) {
    // Prompts of 1 to 125 tokens, so that rows of one step stand at very different positions.
    Tokens prompt = RandomTokens(ours.vocabulary() - 3, 1 + i * 4, i);
    for (TokenId& token : prompt) token += 3;
    wanted[i] = libllama_->Greedy(prompt, kTokens, &margins[i]);
    const std::vector<float> logits = ours.Step({{.sequence = i, .tokens = prompt}});
    got[i].push_back(ArgMax(logits));
    pieces.push_back({.sequence = i, .tokens = {got[i].back()}});
  }
  while (got[0].size() < kTokens) {
    const std::vector<float> logits = ours.Step(pieces);
    for (uint32_t i = 0; i < kBatch; ++i) {
      got[i].push_back(ArgMax(std::span(logits).subspan(i * ours.vocabulary(), ours.vocabulary())));
      pieces[i].tokens = {got[i].back()};
    }
  }
  for (uint32_t i = 0; i < kBatch; ++i) ExpectSame(got[i], wanted[i], margins[i], "sequence " + std::to_string(i));
}

}  // namespace
}  // namespace cofferdam::oracle
