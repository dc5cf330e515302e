#include "model/hparams.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cofferdam::model {
namespace {

// Limits far above any published model and far below anything that overflows.
constexpr uint64_t kMaxLayers = 1024, kMaxEmbedding = 1 << 17, kMaxFeedForward = 1 << 20, kMaxHeads = 1024;
constexpr uint64_t kMaxHeadSize = 512, kMaxVocabulary = 1 << 22, kMaxContext = uint64_t{1} << 30;

// Settings under "<architecture>." that are read below, or that change nothing.
constexpr std::array<std::string_view, 19> kKnownKeys = {"block_count",
                                                         "context_length",
                                                         "embedding_length",
                                                         "feed_forward_length",
                                                         "vocab_size",
                                                         "attention.head_count",
                                                         "attention.head_count_kv",
                                                         "attention.key_length",
                                                         "attention.value_length",
                                                         "attention.layer_norm_rms_epsilon",
                                                         "rope.dimension_count",
                                                         "rope.freq_base",
                                                         "rope.scale_linear",
                                                         "rope.scaling.type",
                                                         "rope.scaling.factor",
                                                         "rope.scaling.attn_factor",
                                                         "rope.scaling.original_context_length",
                                                         "rope.scaling.finetuned",
                                                         "tensor_data_layout"};
// Settings that mean something else, but nothing when they are zero.
constexpr std::array<std::string_view, 3> kMustBeZero = {"expert_count", "expert_used_count", "attention.sliding_window"};

class Reader {
 public:
  Reader(const GgufFile& file, const std::string& architecture) : file_(file), prefix_(architecture + ".") {}

  const absl::Status& status() const { return status_; }

  // Records the first error; returns `fallback` after it. A missing setting without fallback is an error.
  uint64_t Count(std::string_view name, uint64_t most, std::optional<uint64_t> fallback = std::nullopt) {
    const std::string key = absl::StrCat(prefix_, std::string(name));
    auto value = file_.Unsigned(key);
    if (!value.ok()) return Fail(value.status());
    if (!value->has_value() && !fallback) return Fail(absl::InvalidArgumentError(absl::StrCat("the model file lacks '", key, "'")));
    const uint64_t result = value->has_value() ? **value : *fallback;
    if (result < 1 || result > most) {
      return Fail(
          absl::InvalidArgumentError(absl::StrCat("the model file says '", key, "' is ", result, "; it must be 1 to ", most)));
    }
    return result;
  }

  float Number(std::string_view name, std::optional<float> fallback) {
    const std::string key = absl::StrCat(prefix_, std::string(name));
    auto value = file_.Float(key);
    if (!value.ok()) return static_cast<float>(Fail(value.status()));
    if (value->has_value()) return **value;
    if (!fallback) Fail(absl::InvalidArgumentError(absl::StrCat("the model file lacks '", key, "'")));
    return fallback.value_or(1.0f);
  }

  std::string Text(std::string_view name, std::string fallback) {
    auto value = file_.Text(absl::StrCat(prefix_, std::string(name)));
    if (!value.ok()) {
      Fail(value.status());
      return fallback;
    }
    return value->value_or(std::move(fallback));
  }

  uint64_t Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return 1;
  }

 private:
  const GgufFile& file_;
  const std::string prefix_;
  absl::Status status_;
};

absl::StatusOr<Architecture> ReadArchitecture(const GgufFile& file, std::string* name) {
  auto text = file.Text("general.architecture");
  if (!text.ok()) return text.status();
  if (!text->has_value()) return absl::InvalidArgumentError("the model file does not name its architecture");
  *name = **text;
  if (*name == "llama") return Architecture::kLlama;
  if (*name == "qwen2") return Architecture::kQwen2;
  if (*name == "qwen3") return Architecture::kQwen3;
  return absl::UnimplementedError(absl::StrFormat("architecture '%.64s' is not supported; supported: llama, qwen2, qwen3", *name));
}

// A setting that this engine does not know may change every token, so it is refused by name.
absl::Status CheckKnownKeys(const GgufFile& file, const std::string& architecture) {
  const std::string prefix = architecture + ".";
  for (const std::string& key : file.Keys()) {
    if (!absl::StartsWith(key, prefix)) continue;
    const std::string_view name = std::string_view(key).substr(prefix.size());
    if (std::find(kKnownKeys.begin(), kKnownKeys.end(), name) != kKnownKeys.end()) continue;
    if (std::find(kMustBeZero.begin(), kMustBeZero.end(), name) != kMustBeZero.end()) {
      auto value = file.Unsigned(key);
      if (value.ok() && value->value_or(0) == 0) continue;
    }
    return absl::UnimplementedError(absl::StrFormat("the model file's setting '%.96s' is not supported", key));
  }
  return absl::OkStatus();
}

// YaRN's factor of cos and sin. ggml multiplies by 1 + 0.1 ln(1 / scale) itself, so libllama cancels that here; the
// two lines are kept as it computes them, in float, to get the same bits.
float YarnMagnitude(float scale) {
  const float factor = 1.0f / scale;
  const float wanted = factor <= 1.0f ? 1.0f : 0.1f * 1.0f * std::log(factor) + 1.0f;
  return wanted * (1.0f / (1.0f + 0.1f * std::log(factor)));
}

Rope ReadRope(Reader& reader, const Hparams& hparams) {
  Rope rope;
  rope.neox = hparams.architecture != Architecture::kLlama;
  rope.dimensions = static_cast<int>(reader.Count("rope.dimension_count", kMaxHeadSize, hparams.head_size));
  if (rope.dimensions != static_cast<int>(hparams.head_size) || rope.dimensions % 2 != 0) {
    reader.Fail(absl::UnimplementedError(absl::StrCat("RoPE over ", rope.dimensions, " dimensions of a head of ", hparams.head_size,
                                                      " is not supported; they must be equal and even")));
  }
  rope.original_context =
      static_cast<int>(reader.Count("rope.scaling.original_context_length", kMaxContext, hparams.context_length));
  rope.base = reader.Number("rope.freq_base", 10000.0f);
  float factor = reader.Number("rope.scaling.factor", 0.0f);
  if (factor == 0.0f) factor = reader.Number("rope.scale_linear", 0.0f);
  rope.magnitude = reader.Number("rope.scaling.attn_factor", 1.0f);
  if (!(rope.base >= 1.0f) || factor < 0.0f || (factor != 0.0f && (factor < 1e-3f || factor > 1e6f)) || !(rope.magnitude > 0.0f)) {
    reader.Fail(absl::InvalidArgumentError("the model file's RoPE base, scaling factor or attention factor is out of range"));
    return rope;
  }
  rope.scale = factor == 0.0f ? 1.0f : 1.0f / factor;
  const std::string type = reader.Text("rope.scaling.type", "linear");
  if (type == "none") {
    rope.scale = 1.0f;
  } else if (type == "yarn") {
    rope.extrapolation = 1.0f;
    rope.magnitude *= YarnMagnitude(rope.scale);
  } else if (type == "longrope" && hparams.architecture == Architecture::kLlama) {
    // The context this engine serves is the model's whole, so the choice never depends on a request.
    rope.has_long_factors = true;
  } else if (type != "linear") {
    reader.Fail(absl::UnimplementedError(absl::StrFormat("RoPE scaling '%.32s' is not supported", type)));
  }
  return rope;
}

absl::Status CheckVocabulary(const GgufFile& file, Hparams& hparams) {
  const FileTensor* embedding = file.Find("token_embd.weight");
  if (embedding == nullptr) return absl::InvalidArgumentError("the model file lacks the tensor 'token_embd.weight'");
  const auto rows = static_cast<uint64_t>(embedding->shape[1]);
  if (rows > kMaxVocabulary) return absl::InvalidArgumentError(absl::StrCat("a vocabulary of ", rows, " entries is not supported"));
  hparams.vocabulary = static_cast<uint32_t>(rows);
  const auto tokens = file.ArrayLength("tokenizer.ggml.tokens");
  if (tokens && *tokens != rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model file's tokenizer has ", *tokens, " tokens, but its embedding has ", rows, " rows"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Rope::Describe() const {
  return absl::StrFormat("%s dimensions=%d base=%.9g scale=%.9g extrapolation=%.9g magnitude=%.9g beta=%.9g/%.9g original=%d%s",
                         neox ? "neox" : "norm", dimensions, base, scale, extrapolation, magnitude, beta_fast, beta_slow,
                         original_context, has_long_factors ? " longrope" : "");
}

absl::StatusOr<Hparams> ReadHparams(const GgufFile& file) {
  Hparams h;
  auto architecture = ReadArchitecture(file, &h.architecture_name);
  if (!architecture.ok()) return architecture.status();
  h.architecture = *architecture;
  if (auto status = CheckKnownKeys(file, h.architecture_name); !status.ok()) return status;

  Reader reader(file, h.architecture_name);
  h.layers = static_cast<uint32_t>(reader.Count("block_count", kMaxLayers));
  h.embedding = static_cast<uint32_t>(reader.Count("embedding_length", kMaxEmbedding));
  h.feed_forward = static_cast<uint32_t>(reader.Count("feed_forward_length", kMaxFeedForward));
  h.heads = static_cast<uint32_t>(reader.Count("attention.head_count", kMaxHeads));
  h.kv_heads = static_cast<uint32_t>(reader.Count("attention.head_count_kv", kMaxHeads, h.heads));
  h.context_length = reader.Count("context_length", kMaxContext);
  h.rms_epsilon = reader.Number("attention.layer_norm_rms_epsilon", std::nullopt);
  h.head_size = static_cast<uint32_t>(reader.Count("attention.key_length", kMaxHeadSize, h.embedding / h.heads));
  const uint64_t value_size = reader.Count("attention.value_length", kMaxHeadSize, h.embedding / h.heads);
  h.rope = ReadRope(reader, h);
  if (!reader.status().ok()) return reader.status();
  if (value_size != h.head_size) return absl::UnimplementedError("heads whose keys and values differ in size are not supported");
  if (h.heads % h.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(h.heads, " query heads cannot share ", h.kv_heads, " KV heads evenly"));
  }
  if (!(h.rms_epsilon > 0.0f && h.rms_epsilon < 1.0f)) return absl::InvalidArgumentError("the RMS norm's epsilon is out of range");
  if (auto status = CheckVocabulary(file, h); !status.ok()) return status;
  return h;
}

}  // namespace cofferdam::model
