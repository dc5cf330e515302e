// A model's hyper-parameters, read and checked as one.
#ifndef COFFERDAM_MODEL_HPARAMS_H_
#define COFFERDAM_MODEL_HPARAMS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "model/gguf_file.h"

namespace cofferdam::model {

enum class Architecture { kLlama, kQwen2, kQwen3 };

// RoPE as ggml_rope_ext takes it. Names and formulas follow libllama (llama-context.cpp), YaRN those of
// "YaRN: Efficient Context Window Extension of Large Language Models" (Peng et al., 2023).
struct Rope {
  bool neox = false;   // pairs (i, i + dimensions / 2) instead of (2i, 2i + 1)
  int dimensions = 0;  // rotated dimensions of a head
  int original_context = 0;
  float base = 10000.0f;
  float scale = 1.0f;          // of positions
  float extrapolation = 0.0f;  // YaRN's mix of extrapolation and interpolation
  float magnitude = 1.0f;      // factor of cos and sin, before ggml multiplies YaRN's own
  float beta_fast = 32.0f, beta_slow = 1.0f;
  bool has_long_factors = false;  // LongRoPE: rope_factors_long.weight instead of rope_freqs.weight

  std::string Describe() const;
};

struct Hparams {
  Architecture architecture = Architecture::kLlama;
  std::string architecture_name;
  uint32_t layers = 0, embedding = 0, feed_forward = 0;
  uint32_t heads = 0, kv_heads = 0, head_size = 0;
  uint32_t vocabulary = 0;
  uint64_t context_length = 0;
  float rms_epsilon = 0;
  Rope rope;

  uint32_t query_width() const { return heads * head_size; }
  uint32_t kv_width() const { return kv_heads * head_size; }
};

// Errors: InvalidArgument names the setting that is missing, wrong or absurd; Unimplemented names the architecture or
// the setting that this engine does not know. Nothing that libllama would ignore or misread passes silently.
absl::StatusOr<Hparams> ReadHparams(const GgufFile& file);

}  // namespace cofferdam::model

#endif  // COFFERDAM_MODEL_HPARAMS_H_
