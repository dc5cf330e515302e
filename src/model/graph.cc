#include "model/graph.h"

#include <array>

namespace cofferdam::model {
namespace {

// Shapes below are ggml's: the first dimension runs fastest. N rows, E embedding, D head size, H heads, K KV heads.

void WriteOperator(ggml_tensor* result, int thread, int threads, void* data) {
  const auto& call = *static_cast<const LayerCall*>(data);
  const ggml_tensor *k = result->src[0], *v = result->src[1];  // [D, K, N], maybe with gaps between rows
  call.step->WriteLayer(call.layer,
                        {.k = static_cast<const float*>(k->data),
                         .v = static_cast<const float*>(v->data),
                         .k_stride = k->nb[2] / sizeof(float),
                         .v_stride = v->nb[2] / sizeof(float)},
                        thread, threads);
}

void AttentionOperator(ggml_tensor* result, int thread, int /*threads*/, void* data) {
  const auto& call = *static_cast<const LayerCall*>(data);
  const ggml_tensor* q = result->src[0];  // [D, H, N]
  call.step->AttendLayer(call.layer, call.outputs_only,
                         {.q = static_cast<const float*>(q->data),
                          .out = static_cast<float*>(result->data),
                          .q_stride = q->nb[2] / sizeof(float),
                          .out_stride = result->nb[1] / sizeof(float)},
                         thread);
}

class Builder {
 public:
  Builder(const Hparams& h, const Weights& weights, Graph& graph)
      : h_(h), weights_(weights), graph_(graph), c_(graph.context.get()) {}

  void Build(const std::vector<LayerCall>& calls) {
    const bool logits = graph_.shape.outputs > 0;
    graph_.tokens = Input(graph_.shape.rows);
    graph_.positions = Input(graph_.shape.rows);
    if (logits) graph_.output_rows = Input(graph_.shape.outputs);
    ggml_tensor* x = ggml_get_rows(c_, weights_.embedding, graph_.tokens);  // [E, N]
    const uint32_t layers = graph_.shape.first_layer_only ? 1 : h_.layers;
    for (uint32_t i = 0; i < layers; ++i) {
      const bool last = i + 1 == layers;
      x = Layer(weights_.layers[i], x, calls[i], last);
      if (x == nullptr) return;  // K and V of the last layer are all that was wanted
    }
    x = Norm(x, weights_.output_norm);
    graph_.logits = Apply(weights_.output, x);  // [vocabulary, outputs]
    ggml_set_output(graph_.logits);
    ggml_build_forward_expand(graph_.graph, graph_.logits);
  }

 private:
  struct Heads {
    ggml_tensor *q, *k, *v;  // [D, H, N], [D, K, N], [D, K, N]; q is null where nobody needs it
  };

  ggml_tensor* Input(uint32_t rows) {
    ggml_tensor* tensor = ggml_new_tensor_1d(c_, GGML_TYPE_I32, rows);
    ggml_set_input(tensor);
    return tensor;
  }

  ggml_tensor* Norm(ggml_tensor* x, ggml_tensor* weight) { return ggml_mul(c_, ggml_rms_norm(c_, x, h_.rms_epsilon), weight); }

  ggml_tensor* Apply(const Linear& linear, ggml_tensor* x) {
    x = ggml_mul_mat(c_, linear.weight, x);
    return linear.bias == nullptr ? x : ggml_add(c_, x, linear.bias);
  }

  ggml_tensor* Rotate(ggml_tensor* x) {
    const Rope& r = h_.rope;
    return ggml_rope_ext(c_, x, graph_.positions, weights_.rope_factors, r.dimensions,
                         r.neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL, r.original_context, r.base, r.scale, r.extrapolation,
                         r.magnitude, r.beta_fast, r.beta_slow);
  }

  // `count` heads of every row of `x`, from head `first` on.
  ggml_tensor* HeadsOf(ggml_tensor* x, uint32_t first, uint32_t count, size_t row_bytes) {
    const size_t head_bytes = h_.head_size * sizeof(float);
    return ggml_view_3d(c_, x, h_.head_size, count, graph_.shape.rows, head_bytes, row_bytes, first * head_bytes);
  }

  Heads JoinedHeads(const LayerWeights& layer, ggml_tensor* x) {
    ggml_tensor* all = Apply(layer.qkv, x);  // [Q + K + K, N]
    ggml_tensor* v = HeadsOf(all, h_.heads + h_.kv_heads, h_.kv_heads, all->nb[1]);
    if (layer.q_norm != nullptr) {
      ggml_tensor* q = Rotate(Norm(HeadsOf(all, 0, h_.heads, all->nb[1]), layer.q_norm));
      ggml_tensor* k = Rotate(Norm(HeadsOf(all, h_.heads, h_.kv_heads, all->nb[1]), layer.k_norm));
      return {q, k, v};
    }
    // Q and K lie side by side and are rotated as one.
    ggml_tensor* qk = Rotate(HeadsOf(all, 0, h_.heads + h_.kv_heads, all->nb[1]));
    return {HeadsOf(qk, 0, h_.heads, qk->nb[2]), HeadsOf(qk, h_.heads, h_.kv_heads, qk->nb[2]), v};
  }

  Heads SeparateHeads(const LayerWeights& layer, ggml_tensor* x, bool needs_q) {
    const uint32_t rows = graph_.shape.rows;
    auto heads = [&](const Linear& linear, uint32_t count) {
      return ggml_reshape_3d(c_, Apply(linear, x), h_.head_size, count, rows);
    };
    ggml_tensor* q = needs_q ? heads(layer.q, h_.heads) : nullptr;
    ggml_tensor* k = heads(layer.k, h_.kv_heads);
    if (layer.q_norm != nullptr && needs_q) q = Norm(q, layer.q_norm);
    if (layer.k_norm != nullptr) k = Norm(k, layer.k_norm);
    return {needs_q ? Rotate(q) : nullptr, Rotate(k), heads(layer.v, h_.kv_heads)};
  }

  ggml_tensor* FeedForward(const LayerWeights& layer, ggml_tensor* x) {
    ggml_tensor* hidden = layer.gate_up.weight != nullptr ? ggml_swiglu(c_, Apply(layer.gate_up, x))
                                                          : ggml_swiglu_split(c_, Apply(layer.gate, x), Apply(layer.up, x));
    return Apply(layer.down, hidden);
  }

  // x: [E, N]. Returns [E, N], or [E, outputs] from the last layer; null when the last layer has no outputs.
  ggml_tensor* Layer(const LayerWeights& layer, ggml_tensor* x, const LayerCall& shared, bool last) {
    void* const call = const_cast<LayerCall*>(&shared);  // ggml hands it on as it is; the operators only read it
    const bool needs_attention = !last || graph_.shape.outputs > 0;
    ggml_tensor* normed = Norm(x, layer.attention_norm);
    const Heads heads = layer.qkv.weight != nullptr ? JoinedHeads(layer, normed) : SeparateHeads(layer, normed, needs_attention);
    std::array<ggml_tensor*, 2> kv = {heads.k, heads.v};
    ggml_tensor* written = ggml_custom_4d(c_, GGML_TYPE_F32, 1, 1, 1, 1, kv.data(), 2, WriteOperator, GGML_N_TASKS_MAX, call);
    ggml_build_forward_expand(graph_.graph, written);
    if (!needs_attention) return nullptr;

    // `written` is a source only for the order: attention must not start before every thread has written.
    std::array<ggml_tensor*, 2> sources = {heads.q, written};
    const uint32_t rows = last ? graph_.shape.outputs : graph_.shape.rows;
    ggml_tensor* attended = ggml_custom_4d(c_, GGML_TYPE_F32, h_.query_width(), rows, 1, 1, sources.data(), 2, AttentionOperator,
                                           GGML_N_TASKS_MAX, call);
    if (last) x = ggml_get_rows(c_, x, graph_.output_rows);
    x = ggml_add(c_, Apply(layer.attention_output, attended), x);
    return ggml_add(c_, FeedForward(layer, Norm(x, layer.feed_forward_norm)), x);
  }

  const Hparams& h_;
  const Weights& weights_;
  Graph& graph_;
  ggml_context* c_;
};

}  // namespace

absl::StatusOr<Graph> BuildGraph(const Hparams& hparams, const Weights& weights, const std::vector<LayerCall>& calls,
                                 GraphShape shape) {
  constexpr size_t kNodesPerLayer = 40;  // at most 36: three norms, three products with bias, rotations and their views
  const size_t nodes = hparams.layers * kNodesPerLayer + 32;
  Graph graph;
  graph.shape = shape;
  const size_t memory = nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes, false);
  graph.context.reset(ggml_init({.mem_size = memory, .mem_buffer = nullptr, .no_alloc = true}));
  if (graph.context == nullptr) return absl::ResourceExhaustedError("no memory for the graph of a step");
  graph.graph = ggml_new_graph_custom(graph.context.get(), nodes, false);
  Builder(hparams, weights, graph).Build(calls);
  return graph;
}

}  // namespace cofferdam::model
