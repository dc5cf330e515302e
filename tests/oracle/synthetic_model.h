// Writes GGUF files of any size with random weights and a real vocabulary, for tests and benchmarks.
#ifndef COFFERDAM_TESTS_ORACLE_SYNTHETIC_MODEL_H_
#define COFFERDAM_TESTS_ORACLE_SYNTHETIC_MODEL_H_

#include <ggml.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace cofferdam::oracle {

struct SyntheticSpec {
  std::string architecture = "llama";  // "llama", "qwen2" or "qwen3"
  uint32_t layers = 2, embedding = 256, heads = 8, kv_heads = 2, head_size = 32, feed_forward = 512;
  uint32_t vocabulary = 512;  // the first entries of the vocabulary file; 0: all
  uint32_t context = 2048;
  ggml_type type = GGML_TYPE_F16;  // of all matrices
  bool tied = false;               // no output.weight
  bool biases = false;             // of Q, K and V; qwen2 always has them
  bool rope_factors = false;       // rope_freqs.weight, as Llama 3 has
  std::string rope_scaling{};      // "", "linear" or "yarn", by a factor of 4
  uint64_t seed = 1;
  std::string vocabulary_file{};  // a GGUF file with a SentencePiece vocabulary
};

// Weights are drawn so that activations keep their size from layer to layer. The file is a function of the spec alone.
// Errors: InvalidArgument, NotFound (the vocabulary), Internal (the file cannot be written).
absl::Status WriteSyntheticModel(const SyntheticSpec& spec, const std::string& path);

}  // namespace cofferdam::oracle

#endif  // COFFERDAM_TESTS_ORACLE_SYNTHETIC_MODEL_H_
