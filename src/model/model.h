// A model file, validated and mapped: what it is, how its KV pages are laid out, and its weights.
#ifndef COFFERDAM_MODEL_MODEL_H_
#define COFFERDAM_MODEL_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kv/layout.h"

namespace cofferdam::model {

struct Weights;  // model/weights.h
struct Hparams;  // model/hparams.h

struct ModelOptions {
  std::string path{};         // a GGUF file; the first of a split set ("-00001-of-0000N.gguf") stands for all
  std::string model_hash{};   // hex, computed by the caller from the file's bytes; part of the layout id
  uint32_t page_tokens = 64;  // see kv::LayoutSpec
  bool repack = true;         // keep private copies of weights in the processor's favourite order
};

struct ModelInfo {
  std::string architecture;  // "llama", "qwen2" or "qwen3"
  uint32_t layers = 0;
  uint32_t embedding = 0;  // width of a token's hidden state
  uint32_t heads = 0;      // query heads
  uint32_t kv_heads = 0;   // divides heads
  uint32_t head_size_k = 0;
  uint32_t head_size_v = 0;
  uint32_t vocabulary = 0;      // rows of the output head; token ids are 0 to vocabulary - 1
  uint64_t context_length = 0;  // what the model was trained for
  std::string rope_settings;    // names everything of RoPE that changes K; part of the layout id
  size_t weight_bytes = 0;      // of all tensors in the file
  size_t repacked_bytes = 0;    // of those, held once more as private memory
  uint32_t min_rows = 1;        // batches are padded to this many rows, so that results do not depend on the batch (I13)
};

// Immutable after Load and safe to use from any thread; executors share one. The file stays mapped, read-only and
// shared, as long as the model lives, so it must not be truncated meanwhile.
class Model {
 public:
  // Errors: NotFound (no such file), InvalidArgument (not a GGUF file, or one that contradicts itself), Unimplemented
  // (an architecture, a setting or a tensor that this engine does not know, by name), ResourceExhausted (memory).
  // A broken or hostile file never ends the process.
  static absl::StatusOr<std::shared_ptr<const Model>> Load(const ModelOptions& options);

  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelInfo& info() const { return info_; }
  const kv::Layout& layout() const { return layout_; }

  // For the executor.
  const Weights& weights() const { return *weights_; }
  const Hparams& hparams() const { return *hparams_; }

 private:
  Model(ModelInfo info, kv::Layout layout, std::unique_ptr<const Hparams> hparams, std::unique_ptr<const Weights> weights);

  ModelInfo info_;
  kv::Layout layout_;
  std::unique_ptr<const Hparams> hparams_;
  std::unique_ptr<const Weights> weights_;
};

}  // namespace cofferdam::model

#endif  // COFFERDAM_MODEL_MODEL_H_
