// Logits of synthetic models of every supported kind, ours against libllama's own inference on the same file.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "runners.h"
#include "synthetic_model.h"

namespace cofferdam::oracle {
namespace {

// Both sides multiply the same weights with the same kernels of ggml and rotate with the same operator. What differs is
// attention. libllama's flash attention keeps f32 in a prefill, as we do (then F32 models agree to 2e-5, and some
// quantised ones bit for bit), and rounds Q and sums to f16 in decoding (2^-11 = 5e-4). F16 weights round activations to
// 2^-11 as well, BF16 weights to 2^-9. Quantised weights round activations to 8 bits, so that a difference of 1e-5 can tip
// one over to the next of 255 steps; two layers of random weights make 1e-2 of that. libllama differs from itself as
// much with its other attention, and we must stay within twice that. (Deep random models are no oracle: there libllama
// differs by 27% from itself.)
constexpr double kPrefillF32 = 1e-4, kPlain = 3e-3, kBf16 = 1e-2, kQuantised = 4e-2;

struct Case {
  std::string name;
  SyntheticSpec spec;
  bool repack = true;
  double tolerance = 0;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

double WorstRow(std::span<const float> got, std::span<const float> wanted) {
  const size_t vocabulary = SyntheticSpec().vocabulary;
  double worst = 0;
  for (size_t at = 0; at < wanted.size(); at += vocabulary) {
    worst = std::max(worst, RelativeDifference(got.subspan(at, vocabulary), wanted.subspan(at, vocabulary)));
  }
  return worst;
}

class Logits : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    SyntheticSpec spec = GetParam().spec;
    spec.vocabulary_file = VocabularyPath("llama-spm");
    path_ = TemporaryPath(GetParam().name);
    const auto status = WriteSyntheticModel(spec, path_);
    ASSERT_TRUE(status.ok()) << status;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string path_;
};

TEST_P(Logits, PrefillAndDecodeMatchLibllama) {
  constexpr size_t kPrompt = 200, kDecoded = 8;  // past a softmax block of 128 and into a fourth page
  Libllama libllama(path_, {.repack = GetParam().repack, .flash_attention = true});
  Ours ours(path_, {.repack = GetParam().repack}, 1, 256);
  ASSERT_EQ(ours.vocabulary(), libllama.vocabulary());
  const Tokens prompt = RandomTokens(ours.vocabulary(), kPrompt, 3);
  const std::vector<float> wanted = libllama.Prefill(prompt);
  const std::vector<float> got = ours.Step({{.sequence = 0, .tokens = prompt, .all_logits = true}});
  ASSERT_EQ(got.size(), wanted.size());
  const double own = WorstRow(Libllama(path_, {.repack = GetParam().repack}).Prefill(prompt), wanted);
  double worst = WorstRow(got, wanted);
  if (GetParam().spec.type == GGML_TYPE_F32) {
    EXPECT_LT(worst, kPrefillF32);
  }
  for (const TokenId token : RandomTokens(ours.vocabulary(), kDecoded, 4)) {
    worst = std::max(worst, RelativeDifference(ours.Step({{.sequence = 0, .tokens = {token}}}), libllama.Next(token)));
  }
  std::printf("largest difference: %.2e of the largest logit; libllama's from itself with its other attention: %.2e\n", worst, own);
  EXPECT_LT(worst, GetParam().tolerance);
  EXPECT_LT(worst, std::max(kPlain, 2 * own));
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    const std::string a = architecture;
    auto add = [&](const std::string& name, ggml_type type, double tolerance, bool repack = true) {
      cases.push_back(
          {.name = a + "_" + name, .spec = {.architecture = a, .type = type}, .repack = repack, .tolerance = tolerance});
    };
    add("f32", GGML_TYPE_F32, kPlain);
    add("f16", GGML_TYPE_F16, kPlain);
    add("bf16", GGML_TYPE_BF16, kBf16);
    add("q8_0", GGML_TYPE_Q8_0, kQuantised);
    add("q4_0_repacked", GGML_TYPE_Q4_0, kQuantised);
    add("q4_0_plain", GGML_TYPE_Q4_0, kQuantised, false);
    add("q4_k_repacked", GGML_TYPE_Q4_K, kQuantised);
    add("q4_k_plain", GGML_TYPE_Q4_K, kQuantised, false);
    add("q6_k", GGML_TYPE_Q6_K, kQuantised);
    add("linear", GGML_TYPE_F16, kPlain);
    cases.back().spec.rope_scaling = "linear";
    add("yarn", GGML_TYPE_F16, kPlain);
    cases.back().spec.rope_scaling = "yarn";
  }
  auto llama = [&](const std::string& name, const SyntheticSpec& spec, double tolerance) {
    cases.push_back({.name = "llama_" + name, .spec = spec, .tolerance = tolerance});
  };
  llama("rope_factors", {.type = GGML_TYPE_F16, .rope_factors = true}, kPlain);
  llama("biases", {.type = GGML_TYPE_F16, .biases = true}, kPlain);
  llama("biases_joined", {.type = GGML_TYPE_Q4_0, .biases = true}, kQuantised);
  llama("tied", {.type = GGML_TYPE_F16, .tied = true}, kPlain);
  llama("tied_q4_0", {.type = GGML_TYPE_Q4_0, .tied = true}, kQuantised);
  llama("multi_head", {.heads = 8, .kv_heads = 8, .type = GGML_TYPE_F16}, kPlain);
  llama("multi_query_of_32", {.heads = 32, .kv_heads = 1, .head_size = 8, .type = GGML_TYPE_F16}, kPlain);
  llama("heads_of_80", {.heads = 4, .kv_heads = 2, .head_size = 80, .type = GGML_TYPE_F16}, kPlain);
  llama("heads_of_128", {.heads = 4, .kv_heads = 2, .head_size = 128, .type = GGML_TYPE_F16}, kPlain);
  llama("iq4_nl", {.type = GGML_TYPE_IQ4_NL}, kQuantised);
  llama("q5_k", {.type = GGML_TYPE_Q5_K}, kQuantised);
  llama("q2_k", {.type = GGML_TYPE_Q2_K}, kQuantised);
  llama("q3_k", {.type = GGML_TYPE_Q3_K}, kQuantised);
  llama("q5_0", {.type = GGML_TYPE_Q5_0}, kQuantised);
  llama("q4_1", {.type = GGML_TYPE_Q4_1}, kQuantised);
  llama("iq4_xs", {.type = GGML_TYPE_IQ4_XS}, kQuantised);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Models, Logits, testing::ValuesIn(Cases()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cofferdam::oracle
