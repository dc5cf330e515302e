// Non-interference (I13): the bits of a row's logits do not depend on batch, chunks, threads or pages.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "runners.h"
#include "synthetic_model.h"

namespace cofferdam::oracle {
namespace {

struct Case {
  std::string name;
  SyntheticSpec spec;
  bool repack = true;
  size_t cut_step = 9;  // between the chunk boundaries that are tried in the middle of the prompt
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class NonInterference : public testing::TestWithParam<Case> {
 protected:
  static constexpr size_t kPrompt = 150;

  void SetUp() override {
    SyntheticSpec spec = GetParam().spec;
    spec.vocabulary_file = VocabularyPath("llama-spm");
    path_ = TemporaryPath("i13-" + GetParam().name);
    const auto status = WriteSyntheticModel(spec, path_);
    ASSERT_TRUE(status.ok()) << status;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // The prompt's logits, a token a step: what everything else is held against.
  std::vector<float> Alone(Ours& ours, const Tokens& prompt) {
    std::vector<float> logits;
    for (const TokenId token : prompt) {
      const auto row = ours.Step({{.sequence = 0, .tokens = {token}}});
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
  }

  std::string path_;
};

TEST_P(NonInterference, SelfTestPasses) {
  Ours ours(path_, {.repack = GetParam().repack}, 1, 64);
  const auto status = ours.executor().SelfTest();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(NonInterference, EveryChunkBoundary) {
  Ours ours(path_, {.repack = GetParam().repack}, 1, 256);
  const uint32_t v = ours.vocabulary();
  const Tokens prompt = RandomTokens(v, kPrompt, 5);
  const std::vector<float> alone = Alone(ours, prompt);
  for (size_t cut = 1; cut <= kPrompt; cut += cut < 20 || cut > kPrompt - 10 ? 1 : GetParam().cut_step) {
    ours.Reset();
    const auto middle = prompt.begin() + static_cast<ptrdiff_t>(cut);
    const auto first = ours.Step({{.sequence = 0, .tokens = {prompt.begin(), middle}}});
    EXPECT_TRUE(SameBits(first, std::span(alone).subspan((cut - 1) * v, v))) << "first " << cut;
    if (cut == kPrompt) break;
    const auto second = ours.Step({{.sequence = 0, .tokens = {middle, prompt.end()}, .all_logits = true}});
    ASSERT_TRUE(SameBits(second, std::span(alone).subspan(cut * v))) << "from " << cut;
  }
}

TEST_P(NonInterference, ThreadsAndPageSizes) {
  const Tokens prompt = RandomTokens(GetParam().spec.vocabulary, kPrompt, 5);
  Ours one(path_, {.repack = GetParam().repack}, 1, 256);
  const auto wanted = one.Step({{.sequence = 0, .tokens = prompt, .all_logits = true}});
  Ours two(path_, {.repack = GetParam().repack, .threads = 2}, 1, 256);
  EXPECT_TRUE(SameBits(two.Step({{.sequence = 0, .tokens = prompt, .all_logits = true}}), wanted)) << "two threads";
  two.Reset();
  EXPECT_TRUE(SameBits(Alone(two, {prompt.begin(), prompt.begin() + 20}), std::span(wanted).first(20 * one.vocabulary())))
      << "two threads, alone";
  for (const uint32_t page_tokens : {16u, 32u, 128u}) {
    Ours other(path_, {.repack = GetParam().repack, .page_tokens = page_tokens}, 1, 256);
    EXPECT_TRUE(SameBits(other.Step({{.sequence = 0, .tokens = prompt, .all_logits = true}}), wanted))
        << "pages of " << page_tokens;
  }
}

TEST_P(NonInterference, MixedBatches) {
  constexpr uint32_t kOthers = 40;
  Ours ours(path_, {.repack = GetParam().repack}, kOthers + 1, 256);
  const uint32_t v = ours.vocabulary();
  const Tokens prompt = RandomTokens(v, kPrompt, 5);
  const std::vector<float> alone = Alone(ours, prompt);
  for (uint32_t others = 1; others <= kOthers; others += 1 + others / 4) {
    ours.Reset();
    ours.Step({{.sequence = 0, .tokens = {prompt.begin(), prompt.end() - 7}, .no_logits = true}});
    std::vector<Ours::Piece> pieces;
    for (uint32_t i = 1; i <= others; ++i) {
      if (i == (others + 1) / 2) pieces.push_back({.sequence = 0, .tokens = {prompt.end() - 7, prompt.end()}});
      // Decoding neighbours and prefilling ones, some of which want logits.
      pieces.push_back({.sequence = i, .tokens = RandomTokens(v, i % 5 == 0 ? 11 : 1, i), .no_logits = i % 2 == 0});
    }
    const auto logits = ours.Step(pieces);
    const size_t at = [&] {
      size_t wanting = 0;
      for (const auto& piece : pieces) {
        if (piece.sequence == 0) break;
        wanting += piece.no_logits ? 0 : 1;
      }
      return wanting;
    }();
    EXPECT_TRUE(SameBits(std::span(logits).subspan(at * v, v), std::span(alone).last(v))) << "with " << others << " others";
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  auto add = [&](const std::string& name, ggml_type type, bool repack = true) {
    cases.push_back({.name = name, .spec = {.layers = 1, .type = type}, .repack = repack});
  };
  add("f32", GGML_TYPE_F32);
  cases.back().cut_step = 1;
  add("f16", GGML_TYPE_F16);
  add("bf16", GGML_TYPE_BF16);
  add("q8_0", GGML_TYPE_Q8_0);
  add("q4_0", GGML_TYPE_Q4_0);
  cases.back().cut_step = 1;
  add("q4_0_plain", GGML_TYPE_Q4_0, false);
  add("q4_1", GGML_TYPE_Q4_1);
  add("q5_0", GGML_TYPE_Q5_0);
  add("q5_1", GGML_TYPE_Q5_1);
  add("q2_k", GGML_TYPE_Q2_K);
  add("q2_k_plain", GGML_TYPE_Q2_K, false);
  add("q3_k", GGML_TYPE_Q3_K);
  add("q4_k", GGML_TYPE_Q4_K);
  add("q4_k_plain", GGML_TYPE_Q4_K, false);
  add("q5_k", GGML_TYPE_Q5_K);
  add("q6_k", GGML_TYPE_Q6_K);
  add("iq4_nl", GGML_TYPE_IQ4_NL);
  add("iq4_nl_plain", GGML_TYPE_IQ4_NL, false);
  add("iq4_xs", GGML_TYPE_IQ4_XS);
  add("iq3_s", GGML_TYPE_IQ3_S);
  add("mxfp4", GGML_TYPE_MXFP4);
  add("tq2_0", GGML_TYPE_TQ2_0);
  for (Case& c : cases) c.spec.vocabulary = 320;
  cases.push_back({.name = "qwen3", .spec = {.architecture = "qwen3", .vocabulary = 320, .type = GGML_TYPE_Q4_0}});
  cases.push_back({.name = "qwen2", .spec = {.architecture = "qwen2", .vocabulary = 320, .type = GGML_TYPE_Q8_0}});
  cases.push_back({.name = "multi_head", .spec = {.heads = 8, .kv_heads = 8, .vocabulary = 320, .type = GGML_TYPE_Q8_0}});
  cases.push_back(
      {.name = "heads_of_8", .spec = {.heads = 32, .kv_heads = 1, .head_size = 8, .vocabulary = 320, .type = GGML_TYPE_Q8_0}});
  cases.push_back(
      {.name = "heads_of_128", .spec = {.heads = 4, .kv_heads = 2, .head_size = 128, .vocabulary = 320, .type = GGML_TYPE_Q8_0}});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Models, NonInterference, testing::ValuesIn(Cases()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cofferdam::oracle
