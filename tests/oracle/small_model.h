// The small model that the incident and fault tests share: random weights over a real vocabulary, pages of 16 tokens.
#ifndef COFFERDAM_TESTS_ORACLE_SMALL_MODEL_H_
#define COFFERDAM_TESTS_ORACLE_SMALL_MODEL_H_

#include <filesystem>
#include <memory>
#include <string>

#include "base/check.h"
#include "model/model.h"
#include "runners.h"
#include "synthetic_model.h"

namespace cofferdam::oracle {

inline constexpr uint32_t kVocabulary = 320;

inline const std::shared_ptr<const model::Model>& SmallModel() {
  static const std::shared_ptr<const model::Model> model = [] {
    const std::string path = TemporaryPath("small.gguf");
    CD_CHECK(WriteSyntheticModel({.layers = 2,
                                  .embedding = 64,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_size = 16,
                                  .feed_forward = 96,
                                  .vocabulary = kVocabulary,
                                  .context = 512,
                                  .vocabulary_file = VocabularyPath("llama-spm")},
                                 path)
                 .ok(),
             "the model can be written");
    auto loaded = model::Model::Load({.path = path, .model_hash = "small", .page_tokens = 16});
    std::filesystem::remove(path);
    CD_CHECK(loaded.ok(), "the model can be loaded");
    return *loaded;
  }();
  return model;
}

inline Tokens Prompt(uint64_t seed, size_t tokens) { return RandomTokens(kVocabulary, tokens, seed); }

}  // namespace cofferdam::oracle

#endif  // COFFERDAM_TESTS_ORACLE_SMALL_MODEL_H_
