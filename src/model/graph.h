// The decoder as a ggml graph, for one shape of batch.
#ifndef COFFERDAM_MODEL_GRAPH_H_
#define COFFERDAM_MODEL_GRAPH_H_

#include <ggml.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/hparams.h"
#include "model/step.h"
#include "model/weights.h"

namespace cofferdam::model {

struct GraphShape {
  uint32_t rows = 0;              // padded
  uint32_t outputs = 0;           // padded; 0: only K and V are wanted
  bool first_layer_only = false;  // K and V of layer 0; no outputs then

  friend bool operator==(const GraphShape&, const GraphShape&) = default;
};

// What a layer's custom operators get; ggml keeps the pointer. Lives as long as the graphs that point to it, which share it:
// building one changes nothing in it.
struct LayerCall {
  Step* step = nullptr;
  uint32_t layer = 0;
  bool outputs_only = false;  // attention answers only the rows that want logits
};

// A graph for one shape, not yet allocated. Its inputs and outputs belong to `context`.
struct Graph {
  GraphShape shape;
  std::unique_ptr<ggml_context, Weights::FreeContext> context;
  ggml_cgraph* graph = nullptr;
  ggml_tensor* tokens = nullptr;       // [rows] i32
  ggml_tensor* positions = nullptr;    // [rows] i32
  ggml_tensor* output_rows = nullptr;  // [outputs] i32, rows that want logits; null without outputs
  ggml_tensor* logits = nullptr;       // [vocabulary][outputs] f32; null without outputs
};

// `calls` has one entry for each layer. Errors: ResourceExhausted.
absl::StatusOr<Graph> BuildGraph(const Hparams& hparams, const Weights& weights, const std::vector<LayerCall>& calls,
                                 GraphShape shape);

}  // namespace cofferdam::model

#endif  // COFFERDAM_MODEL_GRAPH_H_
