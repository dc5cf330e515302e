// The small model that the duo's tests share: random weights over a real vocabulary, pages of 16 tokens.
#ifndef COFFERDAM_TESTS_INCIDENTS_SMALL_MODEL_H_
#define COFFERDAM_TESTS_INCIDENTS_SMALL_MODEL_H_

#include <filesystem>
#include <memory>
#include <string>

#include "base/check.h"
#include "model/model.h"
#include "runners.h"
#include "synthetic_model.h"

namespace cofferdam::incidents {

inline constexpr uint32_t kVocabulary = 320;

inline const std::shared_ptr<const model::Model>& SmallModel() {
  static const std::shared_ptr<const model::Model> model = [] {
    const std::string path = oracle::TemporaryPath("incidents.gguf");
    CD_CHECK(oracle::WriteSyntheticModel({.layers = 2,
                                          .embedding = 64,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_size = 16,
                                          .feed_forward = 96,
                                          .vocabulary = kVocabulary,
                                          .context = 512,
                                          .vocabulary_file = oracle::VocabularyPath("llama-spm")},
                                         path)
                 .ok(),
             "the model can be written");
    auto loaded = model::Model::Load({.path = path, .model_hash = "incidents", .page_tokens = 16});
    std::filesystem::remove(path);
    CD_CHECK(loaded.ok(), "the model can be loaded");
    return *loaded;
  }();
  return model;
}

inline oracle::Tokens Prompt(uint64_t seed, size_t tokens) { return oracle::RandomTokens(kVocabulary, tokens, seed); }

}  // namespace cofferdam::incidents

#endif  // COFFERDAM_TESTS_INCIDENTS_SMALL_MODEL_H_
