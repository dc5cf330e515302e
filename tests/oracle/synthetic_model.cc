#include "synthetic_model.h"

#include <ggml-cpu.h>
#include <gguf.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"

namespace cofferdam::oracle {
namespace {

struct FreeGguf {
  void operator()(gguf_context* context) const { gguf_free(context); }
};
struct FreeGgml {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
using GgufPtr = std::unique_ptr<gguf_context, FreeGguf>;

// Roughly normal: the sum of four uniform 16-bit numbers of one splitmix64 step, scaled to variance 1.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  float Normal() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const auto sum = static_cast<float>((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
    return (sum / 65535.0f - 2.0f) * 1.7320508f;
  }

 private:
  uint64_t state_;
};

class Writer {
 public:
  explicit Writer(const SyntheticSpec& spec) : spec_(spec), out_(gguf_init_empty()), random_(spec.seed) {
    context_.reset(
        ggml_init({.mem_size = ggml_tensor_overhead() * (spec.layers * 16 + 16), .mem_buffer = nullptr, .no_alloc = true}));
  }

  absl::Status Write(const std::string& path) {
    if (auto status = CopyVocabulary(); !status.ok()) return status;
    Settings();
    Tensors();
    if (!gguf_write_to_file(out_.get(), path.c_str(), false)) return absl::InternalError(absl::StrCat("cannot write ", path));
    return absl::OkStatus();
  }

 private:
  absl::Status CopyVocabulary() {
    GgufPtr from(gguf_init_from_file(spec_.vocabulary_file.c_str(), {.no_alloc = true, .ctx = nullptr}));
    if (from == nullptr) return absl::NotFoundError(absl::StrCat("no vocabulary at ", spec_.vocabulary_file));
    const int64_t tokens = gguf_find_key(from.get(), "tokenizer.ggml.tokens");
    if (tokens < 0) return absl::InvalidArgumentError("the vocabulary file has no tokens");
    const size_t all = gguf_get_arr_n(from.get(), tokens);
    vocabulary_ = spec_.vocabulary == 0 ? all : spec_.vocabulary;
    if (vocabulary_ > all) return absl::InvalidArgumentError("the vocabulary file is too short");
    for (int64_t i = 0; i < gguf_get_n_kv(from.get()); ++i) {
      const char* key = gguf_get_key(from.get(), i);
      if (std::strncmp(key, "tokenizer.", 10) != 0) continue;
      if (gguf_get_kv_type(from.get(), i) != GGUF_TYPE_ARRAY)
        CopyScalar(from.get(), i, key);
      else
        CopyArray(from.get(), i, key, all);
    }
    return absl::OkStatus();
  }

  void CopyScalar(const gguf_context* from, int64_t i, const char* key) {
    switch (gguf_get_kv_type(from, i)) {
      case GGUF_TYPE_STRING:
        gguf_set_val_str(out_.get(), key, gguf_get_val_str(from, i));
        break;
      case GGUF_TYPE_UINT32:
        gguf_set_val_u32(out_.get(), key, gguf_get_val_u32(from, i));
        break;
      case GGUF_TYPE_BOOL:
        gguf_set_val_bool(out_.get(), key, gguf_get_val_bool(from, i));
        break;
      default:
        break;
    }
  }

  void CopyArray(const gguf_context* from, int64_t i, const char* key, size_t all) {
    const size_t count = gguf_get_arr_n(from, i) == all ? vocabulary_ : gguf_get_arr_n(from, i);
    if (gguf_get_arr_type(from, i) != GGUF_TYPE_STRING) {
      gguf_set_arr_data(out_.get(), key, gguf_get_arr_type(from, i), gguf_get_arr_data(from, i), count);
      return;
    }
    std::vector<const char*> texts;
    for (size_t t = 0; t < count; ++t) texts.push_back(gguf_get_arr_str(from, i, t));
    gguf_set_arr_str(out_.get(), key, texts.data(), texts.size());
  }

  void Number(const std::string& name, uint32_t value) {
    gguf_set_val_u32(out_.get(), absl::StrCat(spec_.architecture, ".", name).c_str(), value);
  }
  void Real(const std::string& name, float value) {
    gguf_set_val_f32(out_.get(), absl::StrCat(spec_.architecture, ".", name).c_str(), value);
  }

  void Settings() {
    gguf_set_val_str(out_.get(), "general.architecture", spec_.architecture.c_str());
    gguf_set_val_str(out_.get(), "general.name", "synthetic");
    Number("block_count", spec_.layers);
    Number("context_length", spec_.context);
    Number("embedding_length", spec_.embedding);
    Number("feed_forward_length", spec_.feed_forward);
    Number("attention.head_count", spec_.heads);
    Number("attention.head_count_kv", spec_.kv_heads);
    Number("attention.key_length", spec_.head_size);
    Number("attention.value_length", spec_.head_size);
    Number("rope.dimension_count", spec_.head_size);
    Real("attention.layer_norm_rms_epsilon", 1e-5f);
    Real("rope.freq_base", 10000.0f);
    if (spec_.rope_scaling.empty()) return;
    gguf_set_val_str(out_.get(), absl::StrCat(spec_.architecture, ".rope.scaling.type").c_str(), spec_.rope_scaling.c_str());
    Real("rope.scaling.factor", 4.0f);
    Number("rope.scaling.original_context_length", spec_.context / 4);
  }

  // Values are mean + deviation * normal. Tensors of one dimension are f32.
  void Tensor(const std::string& name, ggml_type type, int64_t in, int64_t out, float mean, float deviation) {
    std::vector<float> values(static_cast<size_t>(in * out));
    for (float& value : values) value = mean + deviation * random_.Normal();
    ggml_tensor* tensor = ggml_new_tensor_2d(context_.get(), type, in, out);
    ggml_set_name(tensor, name.c_str());
    auto& bytes = data_.emplace_back(ggml_nbytes(tensor));
    ggml_quantize_chunk(type, values.data(), bytes.data(), 0, out, in, nullptr);
    tensor->data = bytes.data();
    gguf_add_tensor(out_.get(), tensor);
  }
  void Matrix(const std::string& name, int64_t in, int64_t out) {
    Tensor(name + ".weight", spec_.type, in, out, 0.0f, 1.0f / std::sqrt(static_cast<float>(in)));
  }
  void Vector(const std::string& name, int64_t size, float mean, float deviation) {
    Tensor(name, GGML_TYPE_F32, size, 1, mean, deviation);
  }

  void Tensors() {
    const int64_t e = spec_.embedding;
    Tensor("token_embd.weight", spec_.type, e, static_cast<int64_t>(vocabulary_), 0.0f, 1.0f);
    Vector("output_norm.weight", e, 1.0f, 0.1f);
    if (!spec_.tied) Matrix("output", e, static_cast<int64_t>(vocabulary_));
    if (spec_.rope_factors) Vector("rope_freqs.weight", spec_.head_size / 2, 3.0f, 0.5f);
    for (uint32_t i = 0; i < spec_.layers; ++i) Layer(absl::StrCat("blk.", i, "."));
  }

  void Layer(const std::string& at) {
    const int64_t e = spec_.embedding, q = spec_.heads * spec_.head_size, kv = spec_.kv_heads * spec_.head_size,
                  f = spec_.feed_forward;
    Vector(at + "attn_norm.weight", e, 1.0f, 0.1f);
    Matrix(at + "attn_q", e, q);
    Matrix(at + "attn_k", e, kv);
    Matrix(at + "attn_v", e, kv);
    if (spec_.biases || spec_.architecture == "qwen2") {
      Vector(at + "attn_q.bias", q, 0.0f, 0.2f);
      Vector(at + "attn_k.bias", kv, 0.0f, 0.2f);
      Vector(at + "attn_v.bias", kv, 0.0f, 0.2f);
    }
    if (spec_.architecture == "qwen3") {
      Vector(at + "attn_q_norm.weight", spec_.head_size, 1.0f, 0.1f);
      Vector(at + "attn_k_norm.weight", spec_.head_size, 1.0f, 0.1f);
    }
    Matrix(at + "attn_output", q, e);
    Vector(at + "ffn_norm.weight", e, 1.0f, 0.1f);
    Matrix(at + "ffn_gate", e, f);
    Matrix(at + "ffn_up", e, f);
    Matrix(at + "ffn_down", f, e);
  }

  const SyntheticSpec& spec_;
  GgufPtr out_;
  std::unique_ptr<ggml_context, FreeGgml> context_;
  std::deque<std::vector<uint8_t>> data_;  // stays where it is while gguf points to it
  Random random_;
  size_t vocabulary_ = 0;
};

}  // namespace

absl::Status WriteSyntheticModel(const SyntheticSpec& spec, const std::string& path) {
  ggml_cpu_init();
  return Writer(spec).Write(path);
}

}  // namespace cofferdam::oracle
