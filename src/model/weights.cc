#include "model/weights.h"

#include <ggml-cpu.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/repack.h"

namespace cofferdam::model {
namespace {

bool IsIqType(ggml_type type) {
  switch (type) {
    case GGML_TYPE_IQ2_XXS:
    case GGML_TYPE_IQ2_XS:
    case GGML_TYPE_IQ2_S:
    case GGML_TYPE_IQ3_XXS:
    case GGML_TYPE_IQ3_S:
    case GGML_TYPE_IQ1_S:
    case GGML_TYPE_IQ1_M:
    case GGML_TYPE_IQ4_XS:
      return true;
    default:
      return false;
  }
}

bool IsMatrixType(ggml_type type) {
  switch (type) {
    case GGML_TYPE_F32:
    case GGML_TYPE_F16:
    case GGML_TYPE_BF16:
    case GGML_TYPE_Q4_0:
    case GGML_TYPE_Q4_1:
    case GGML_TYPE_Q5_0:
    case GGML_TYPE_Q5_1:
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_Q2_K:
    case GGML_TYPE_Q3_K:
    case GGML_TYPE_Q4_K:
    case GGML_TYPE_Q5_K:
    case GGML_TYPE_Q6_K:
    case GGML_TYPE_IQ4_NL:
    case GGML_TYPE_TQ1_0:
    case GGML_TYPE_TQ2_0:
    case GGML_TYPE_MXFP4:
      return true;
    default:
      return IsIqType(type);
  }
}

// Builds the tensors one after the other and keeps the first error, so that the list of tensors reads as a list.
class Loader {
 public:
  Loader(Weights& weights, bool repack) : weights_(weights), repack_(repack) {}

  const absl::Status& status() const { return status_; }

  ggml_tensor* Vector(const std::string& name, int64_t size, bool optional = false) {
    const FileTensor* found = Find(name, {size, 1}, optional);
    if (found == nullptr) return nullptr;
    if (found->type != GGML_TYPE_F32) return Fail(Unsupported(name, *found));
    return View(name, *found);
  }

  ggml_tensor* Plain(const std::string& name, int64_t in, int64_t out) {
    const FileTensor* found = Find(name, {in, out}, false);
    return found == nullptr ? nullptr : View(name, *found);
  }

  Linear Matrix(const std::string& name, int64_t in, int64_t out) {
    return {One(absl::StrCat(name, ".weight"), in, out), Vector(absl::StrCat(name, ".bias"), out, true)};
  }

  ggml_tensor* One(const std::string& name, int64_t in, int64_t out) {
    const FileTensor* found = Find(name, {in, out}, false);
    if (found == nullptr) return nullptr;
    if (!Repacks(found->type, in, out)) {
      NotePlain(found->type);
      return View(name, *found);
    }
    return Repacked(name, {found}, in);
  }

  struct Part {
    std::string name;
    int64_t out;
    Linear* alone;
  };

  // The parts as one repacked matrix in `joined`, when they can be; else each on its own.
  void Joined(std::vector<Part> parts, int64_t in, Linear* joined) {
    std::vector<const FileTensor*> found;
    int64_t out = 0;
    bool can_join = true;
    for (const Part& part : parts) {
      const FileTensor* tensor = Find(absl::StrCat(part.name, ".weight"), {in, part.out}, false);
      if (tensor == nullptr) return;
      found.push_back(tensor);
      out += part.out;
      can_join = can_join && tensor->type == found.front()->type && Repacks(tensor->type, in, part.out);
    }
    if (!can_join) {
      for (const Part& part : parts) *part.alone = Matrix(part.name, in, part.out);
      return;
    }
    joined->weight = Repacked(parts.front().name + ".joined", found, in);
    joined->bias = JoinedBias(parts, out);
  }

  // Every tensor of the file must have been used: one that was not changes the model in a way unknown here.
  void CheckAllUsed() {
    if (!status_.ok()) return;
    for (const auto& [name, tensor] : weights_.file.tensors()) {
      if (!used_.contains(name)) {
        Fail(absl::UnimplementedError(absl::StrFormat("the model file's tensor '%.64s' is not supported", name)));
        return;
      }
    }
  }

 private:
  ggml_tensor* Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return nullptr;
  }

  static absl::Status Unsupported(const std::string& name, const FileTensor& tensor) {
    return absl::UnimplementedError(
        absl::StrFormat("tensor '%.64s' of type %s is not supported there", name, ggml_type_name(tensor.type)));
  }

  const FileTensor* Find(const std::string& name, std::array<int64_t, 2> shape, bool optional) {
    const FileTensor* found = weights_.file.Find(name);
    if (found == nullptr) {
      if (!optional) Fail(absl::InvalidArgumentError(absl::StrFormat("the model file lacks the tensor '%.64s'", name)));
      return nullptr;
    }
    used_.insert(name);
    if (found->shape[0] != shape[0] || found->shape[1] != shape[1] || found->shape[2] != 1 || found->shape[3] != 1) {
      Fail(absl::InvalidArgumentError(absl::StrFormat("tensor '%.64s' has the shape [%d, %d, %d, %d]; it must be [%d, %d]", name,
                                                      found->shape[0], found->shape[1], found->shape[2], found->shape[3], shape[0],
                                                      shape[1])));
      return nullptr;
    }
    if (!IsMatrixType(found->type)) {
      Fail(Unsupported(name, *found));
      return nullptr;
    }
    return found;
  }

  ggml_tensor* NewTensor(const std::string& name, ggml_type type, int64_t in, int64_t out) {
    ggml_tensor* tensor = ggml_new_tensor_2d(weights_.context.get(), type, in, out);
    ggml_set_name(tensor, name.c_str());
    return tensor;
  }

  ggml_tensor* View(const std::string& name, const FileTensor& found) {
    if (auto known = views_.find(name); known != views_.end()) return known->second;  // tied embeddings
    ggml_tensor* tensor = NewTensor(name, found.type, found.shape[0], found.shape[1]);
    // ggml has no const tensors; nothing writes through this pointer, and the mapping would fault if something did.
    tensor->data = const_cast<std::byte*>(found.data);
    views_.emplace(name, tensor);
    return tensor;
  }

  bool Repacks(ggml_type type, int64_t in, int64_t out) const { return repack_ && RepackSupports(type, in, out); }

  void NotePlain(ggml_type type) {
    const bool one_row_differs =
        type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || type == GGML_TYPE_IQ4_NL;
    if (one_row_differs) weights_.min_rows = std::max(weights_.min_rows, 2u);
    if (IsIqType(type)) weights_.reference_path = true;
  }

  ggml_tensor* Repacked(const std::string& name, const std::vector<const FileTensor*>& parts, int64_t in) {
    int64_t out = 0;
    size_t bytes = 0;
    for (const FileTensor* part : parts) {
      out += part->shape[1];
      bytes += part->bytes;
    }
    const ggml_type type = parts.front()->type;
    ggml_tensor* tensor = NewTensor(name, type, in, out);
    std::unique_ptr<ggml_backend_buffer, Weights::FreeBuffer> buffer(AllocateRepacked(tensor));
    if (buffer == nullptr) {
      return Fail(absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes of repacked weights")));
    }
    if (parts.size() == 1) {
      ggml_backend_tensor_set(tensor, parts.front()->data, 0, bytes);
    } else {
      const auto joined = std::make_unique_for_overwrite<std::byte[]>(bytes);
      size_t offset = 0;
      for (const FileTensor* part : parts) {
        std::memcpy(joined.get() + offset, part->data, part->bytes);
        offset += part->bytes;
      }
      ggml_backend_tensor_set(tensor, joined.get(), 0, bytes);
    }
    weights_.buffers.push_back(std::move(buffer));
    weights_.repacked_bytes += bytes;
    weights_.row_multiple = std::max(weights_.row_multiple, RepackRowMultiple(type));
    return tensor;
  }

  ggml_tensor* JoinedBias(const std::vector<Part>& parts, int64_t out) {
    std::vector<ggml_tensor*> biases;
    bool any = false;
    for (const Part& part : parts) {
      biases.push_back(Vector(absl::StrCat(part.name, ".bias"), part.out, true));
      any = any || biases.back() != nullptr;
    }
    if (!any) return nullptr;
    auto joined = std::make_unique<float[]>(static_cast<size_t>(out));
    size_t offset = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (biases[i] != nullptr) std::memcpy(joined.get() + offset, biases[i]->data, ggml_nbytes(biases[i]));
      offset += static_cast<size_t>(parts[i].out);
    }
    ggml_tensor* tensor = NewTensor(parts.front().name + ".joined_bias", GGML_TYPE_F32, out, 1);
    tensor->data = joined.get();
    weights_.copies.push_back(std::move(joined));
    return tensor;
  }

  Weights& weights_;
  const bool repack_;
  absl::Status status_;
  absl::flat_hash_set<std::string> used_;
  absl::flat_hash_map<std::string, ggml_tensor*> views_;
};

LayerWeights LoadLayer(Loader& load, const Hparams& h, uint32_t index) {
  const std::string at = absl::StrCat("blk.", index, ".");
  const int64_t e = h.embedding, q = h.query_width(), kv = h.kv_width(), f = h.feed_forward;
  LayerWeights layer;
  layer.attention_norm = load.Vector(at + "attn_norm.weight", e);
  load.Joined({{at + "attn_q", q, &layer.q}, {at + "attn_k", kv, &layer.k}, {at + "attn_v", kv, &layer.v}}, e, &layer.qkv);
  if (h.architecture == Architecture::kQwen3) {
    layer.q_norm = load.Vector(at + "attn_q_norm.weight", h.head_size);
    layer.k_norm = load.Vector(at + "attn_k_norm.weight", h.head_size);
  }
  layer.attention_output = load.Matrix(at + "attn_output", q, e);
  layer.feed_forward_norm = load.Vector(at + "ffn_norm.weight", e);
  load.Joined({{at + "ffn_gate", f, &layer.gate}, {at + "ffn_up", f, &layer.up}}, e, &layer.gate_up);
  layer.down = load.Matrix(at + "ffn_down", f, e);
  return layer;
}

ggml_tensor* LoadRopeFactors(Loader& load, const Hparams& h) {
  if (h.architecture != Architecture::kLlama) return nullptr;
  const int64_t pairs = h.rope.dimensions / 2;
  if (!h.rope.has_long_factors) return load.Vector("rope_freqs.weight", pairs, true);
  ggml_tensor* longer = load.Vector("rope_factors_long.weight", pairs);
  ggml_tensor* shorter = load.Vector("rope_factors_short.weight", pairs);
  return h.context_length > static_cast<uint64_t>(h.rope.original_context) ? longer : shorter;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Weights>> LoadWeights(GgufFile file, const Hparams& h, bool repack) {
  auto weights = std::make_unique<Weights>(std::move(file));
  const size_t tensors = size_t{h.layers} * 24 + 16;
  weights->context.reset(ggml_init({.mem_size = tensors * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  if (weights->context == nullptr) return absl::ResourceExhaustedError("no memory for the model's tensor table");
  Loader load(*weights, repack);
  weights->embedding = load.Plain("token_embd.weight", h.embedding, h.vocabulary);
  weights->output_norm = load.Vector("output_norm.weight", h.embedding);
  const bool tied = weights->file.Find("output.weight") == nullptr;
  weights->output.weight = load.One(tied ? "token_embd.weight" : "output.weight", h.embedding, h.vocabulary);
  weights->output.bias = load.Vector("output.bias", h.vocabulary, true);
  weights->rope_factors = LoadRopeFactors(load, h);
  for (uint32_t i = 0; i < h.layers && load.status().ok(); ++i) weights->layers.push_back(LoadLayer(load, h, i));
  load.CheckAllUsed();
  if (!load.status().ok()) return load.status();
  return std::unique_ptr<const Weights>(std::move(weights));
}

}  // namespace cofferdam::model
