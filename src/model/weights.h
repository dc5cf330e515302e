// A model's weights as ggml tensors: views into the mapped file, or private copies in the processor's favourite order.
#ifndef COFFERDAM_MODEL_WEIGHTS_H_
#define COFFERDAM_MODEL_WEIGHTS_H_

#include <ggml-backend.h>
#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/gguf_file.h"
#include "model/hparams.h"

namespace cofferdam::model {

// y = weight x + bias. Shapes are ggml's: weight [in][out] with `in` running fastest, bias [out] f32 or null.
struct Linear {
  ggml_tensor* weight = nullptr;
  ggml_tensor* bias = nullptr;
};

// E embedding, Q = heads * head_size, K = kv_heads * head_size, F feed_forward. Either the fused matrix or its parts are
// set: repacked copies of one type are stored as one matrix, since one product instead of three saves two barriers.
struct LayerWeights {
  ggml_tensor* attention_norm = nullptr;     // [E] f32
  Linear qkv;                                // [E][Q + K + K]
  Linear q, k, v;                            // [E][Q], [E][K], [E][K]
  ggml_tensor* q_norm = nullptr;             // [head_size] f32, qwen3
  ggml_tensor* k_norm = nullptr;             // [head_size] f32, qwen3
  Linear attention_output;                   // [Q][E]
  ggml_tensor* feed_forward_norm = nullptr;  // [E] f32
  Linear gate_up;                            // [E][F + F]
  Linear gate, up;                           // [E][F]
  Linear down;                               // [F][E]
};

// Immutable after LoadWeights; safe to use from any thread.
struct Weights {
  struct FreeContext {
    void operator()(ggml_context* context) const { ggml_free(context); }
  };
  struct FreeBuffer {
    void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
  };

  GgufFile file;
  std::unique_ptr<ggml_context, FreeContext> context;  // holds the tensors' descriptions
  std::vector<std::unique_ptr<ggml_backend_buffer, FreeBuffer>> buffers;
  std::vector<std::unique_ptr<float[]>> copies;  // joined biases

  ggml_tensor* embedding = nullptr;  // [E][vocabulary], always plain
  std::vector<LayerWeights> layers;
  ggml_tensor* output_norm = nullptr;   // [E] f32
  Linear output;                        // [E][vocabulary]
  ggml_tensor* rope_factors = nullptr;  // [head_size / 2] f32, or null

  size_t repacked_bytes = 0;
  // ggml takes another path for one row, or for a rest of fewer than four; batches are padded so that it never does.
  uint32_t min_rows = 1;
  uint32_t row_multiple = 1;
  // ggml's panels for the IQ types start at eight rows and sum in another order; its reference path does not have them.
  bool reference_path = false;

  explicit Weights(GgufFile f) : file(std::move(f)) {}
};

// Errors: InvalidArgument (a tensor is missing or has another shape), Unimplemented (a tensor or a type that this
// engine does not know, by name), ResourceExhausted.
absl::StatusOr<std::unique_ptr<const Weights>> LoadWeights(GgufFile file, const Hparams& hparams, bool repack);

}  // namespace cofferdam::model

#endif  // COFFERDAM_MODEL_WEIGHTS_H_
