// What stands for a model: K and V are a function of the tokens, and the next token is a function of every byte of K and V that a
// row may read. So a wrong byte, wherever it comes from, is a wrong answer.
#ifndef COFFERDAM_SIM_CONTENT_H_
#define COFFERDAM_SIM_CONTENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/strong_id.h"
#include "kv/layout.h"
#include "model/computation.h"

namespace cofferdam::sim {

inline constexpr uint32_t kVocabulary = 32;
inline constexpr uint32_t kPageTokens = 16;

// Two layers with one head of two numbers each: 256 bytes a page.
const kv::Layout& SimLayout();

// What a row's logits say, and what its token must be.
struct Answer {
  TokenId token = 0;
  float logprob = 0;
  friend bool operator==(const Answer&, const Answer&) = default;
};

// The right answer, from tokens alone.
class Oracle {
 public:
  void Append(TokenId token);
  // Behind all tokens so far. REQUIRES: at least one.
  Answer Next() const;

 private:
  uint64_t first_ = 0, second_ = 0;
  uint32_t position_ = 0;
};

// Layer 0's K and V are a function of token and position, as a model's are; layer 1's, of layer 0's of all tokens up to there.
class Content final : public model::Computation {
 public:
  // `between` is called between the layers of a step: what the fabric does meanwhile happens there.
  explicit Content(std::function<void()> between) : between_(std::move(between)) {}

  absl::StatusOr<std::span<const float>> Run(const model::Batch& batch) override;
  absl::Status RunFirstLayer(const model::Batch& batch) override;
  bool ReadWrongBytes(uint32_t table) const override { return wrong_[table]; }
  uint32_t vocabulary() const override { return kVocabulary; }
  // Fault::kSealedTooEarly: what a step should have written before it ended.
  void WriteLate();

 private:
  struct LateWrite {
    std::byte* page = nullptr;
    uint32_t slot = 0;
    uint64_t bits = 0;
  };
  void CheckSums(const model::Batch& batch);
  void RunSecondLayer(const model::Batch& batch);
  void WriteLogits(const model::Batch& batch);

  const std::function<void()> between_;
  std::vector<bool> wrong_;
  std::vector<float> logits_;
  std::vector<LateWrite> late_;
};

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_CONTENT_H_
