#include "model/model.h"

#include <ggml.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "model/gguf_file.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace cofferdam::model {
namespace {

ModelInfo MakeInfo(const Hparams& h, const Weights& weights) {
  ModelInfo info;
  info.architecture = h.architecture_name;
  info.layers = h.layers;
  info.embedding = h.embedding;
  info.heads = h.heads;
  info.kv_heads = h.kv_heads;
  info.head_size_k = info.head_size_v = h.head_size;
  info.vocabulary = h.vocabulary;
  info.context_length = h.context_length;
  info.rope_settings = h.rope.Describe();
  info.weight_bytes = weights.file.tensor_bytes();
  info.repacked_bytes = weights.repacked_bytes;
  info.min_rows = std::max(weights.min_rows, weights.row_multiple);
  return info;
}

// ggml would print a line for every tensor it repacks.
void ForwardGgmlLog(ggml_log_level level, const char* text, void*) {
  if (level >= GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_CONT)
    log::warn("ggml: {}", std::string(absl::StripTrailingAsciiWhitespace(text)));
}

}  // namespace

Model::Model(ModelInfo info, kv::Layout layout, std::unique_ptr<const Hparams> hparams, std::unique_ptr<const Weights> weights)
    : info_(std::move(info)), layout_(std::move(layout)), hparams_(std::move(hparams)), weights_(std::move(weights)) {}

Model::~Model() = default;

absl::StatusOr<std::shared_ptr<const Model>> Model::Load(const ModelOptions& options) {
  static std::once_flag once;
  std::call_once(once, [] { ggml_log_set(ForwardGgmlLog, nullptr); });
  auto file = GgufFile::Open(options.path);
  if (!file.ok()) return file.status();
  auto hparams = ReadHparams(*file);
  if (!hparams.ok()) return hparams.status();
  auto layout = kv::Layout::Make({.model_hash = options.model_hash,
                                  .rope_settings = hparams->rope.Describe(),
                                  .layers = hparams->layers,
                                  .kv_heads = hparams->kv_heads,
                                  .head_size_k = hparams->head_size,
                                  .head_size_v = hparams->head_size,
                                  .page_tokens = options.page_tokens});
  if (!layout.ok()) return layout.status();
  auto weights = LoadWeights(*std::move(file), *hparams, options.repack);
  if (!weights.ok()) return weights.status();
  ModelInfo info = MakeInfo(*hparams, **weights);
  return std::shared_ptr<const Model>(
      new Model(std::move(info), *std::move(layout), std::make_unique<const Hparams>(*std::move(hparams)), *std::move(weights)));
}

}  // namespace cofferdam::model
