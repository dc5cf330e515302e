#include "sim/content.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/faults.h"
#include "kv/seal.h"
#include "model/sampler.h"
#include "sim/random.h"

namespace cofferdam::sim {
namespace {

using Slot = uint64_t;  // K and V of one token in one layer: four numbers of two bytes

// Four f16 numbers from 1 to 2, of either sign: none of them is near another token's.
Slot Numbers(uint64_t hash) { return (hash & 0x83ff83ff83ff83ffULL) | 0x3c003c003c003c00ULL; }
Slot FirstLayer(TokenId token, uint32_t position) { return Numbers(Mix(static_cast<uint64_t>(token) + 1, position)); }

size_t At(size_t base, size_t element) { return base + 2 * element; }

Slot ReadSlot(const std::byte* payload, uint32_t layer, uint32_t slot) {
  const kv::Layout& layout = SimLayout();
  const size_t k = layout.KOffset(layer, 0), v = layout.VOffset(layer, 0);
  uint16_t parts[4];
  std::memcpy(&parts[0], payload + At(k, layout.KElement(slot, 0)), 2);
  std::memcpy(&parts[1], payload + At(k, layout.KElement(slot, 1)), 2);
  std::memcpy(&parts[2], payload + At(v, layout.VElement(slot, 0)), 4);
  Slot bits;
  std::memcpy(&bits, parts, sizeof bits);
  return bits;
}

void WriteSlot(std::byte* payload, uint32_t layer, uint32_t slot, Slot bits) {
  const kv::Layout& layout = SimLayout();
  const size_t k = layout.KOffset(layer, 0), v = layout.VOffset(layer, 0);
  uint16_t parts[4];
  std::memcpy(parts, &bits, sizeof bits);
  std::memcpy(payload + At(k, layout.KElement(slot, 0)), &parts[0], 2);
  std::memcpy(payload + At(k, layout.KElement(slot, 1)), &parts[1], 2);
  std::memcpy(payload + At(v, layout.VElement(slot, 0)), &parts[2], 4);
}

std::byte* PageOf(const model::Batch& batch, const model::BatchRow& row) {
  return batch.tables[row.table][row.position / kPageTokens];
}

// Of one layer's K and V at positions 0 to `end` - 1.
uint64_t Attend(std::span<std::byte* const> table, uint32_t layer, uint32_t end) {
  uint64_t hash = 0;
  for (uint32_t i = 0; i < end; ++i) hash = Mix(hash, ReadSlot(table[i / kPageTokens], layer, i % kPageTokens));
  return hash;
}

void SetLogits(uint64_t hash, std::span<float> logits) {
  std::ranges::fill(logits, 0.0f);
  logits[hash % kVocabulary] = 1.0f + static_cast<float>(hash >> 44) * 0x1p-20f;
}

}  // namespace

const kv::Layout& SimLayout() {
  static const kv::Layout layout = *kv::Layout::Make({.model_hash = "simulated",
                                                      .rope_settings = "",
                                                      .layers = 2,
                                                      .kv_heads = 1,
                                                      .head_size_k = 2,
                                                      .head_size_v = 2,
                                                      .page_tokens = kPageTokens});
  return layout;
}

void Oracle::Append(TokenId token) {
  first_ = Mix(first_, FirstLayer(token, position_++));
  second_ = Mix(second_, Numbers(first_));
}

Answer Oracle::Next() const {
  float logits[kVocabulary];
  SetLogits(second_, logits);
  const auto token = static_cast<TokenId>(second_ % kVocabulary);
  return {.token = token, .logprob = model::LogProbability(logits, token)};
}

absl::StatusOr<std::span<const float>> Content::Run(const model::Batch& batch) {
  WriteLate();
  for (const model::BatchRow& row : batch.rows) {
    WriteSlot(PageOf(batch, row), 0, row.position % kPageTokens, FirstLayer(row.token, row.position));
  }
  between_();
  RunSecondLayer(batch);
  between_();
  CheckSums(batch);
  WriteLogits(batch);
  return logits_;
}

absl::Status Content::RunFirstLayer(const model::Batch& batch) {
  for (const model::BatchRow& row : batch.rows) {
    WriteSlot(PageOf(batch, row), 0, row.position % kPageTokens, FirstLayer(row.token, row.position));
  }
  return absl::OkStatus();
}

void Content::RunSecondLayer(const model::Batch& batch) {
  uint64_t hash = 0;
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const model::BatchRow& row = batch.rows[i];
    std::byte* const page = PageOf(batch, row);
    const uint32_t slot = row.position % kPageTokens;
    const bool goes_on = i > 0 && batch.rows[i - 1].table == row.table;
    if (!goes_on) hash = Attend(batch.tables[row.table], 0, row.position);
    hash = Mix(hash, ReadSlot(page, 0, slot));
    const bool last = i + 1 == batch.rows.size() || batch.rows[i + 1].table != row.table;
    if (FaultIsOn(Fault::kSealedTooEarly) && last && !row.wants_logits) {
      late_.push_back({.page = page, .slot = slot, .bits = Numbers(hash)});
    } else {
      WriteSlot(page, 1, slot, Numbers(hash));
    }
  }
}

void Content::WriteLate() {
  for (const LateWrite& write : std::exchange(late_, {})) WriteSlot(write.page, 1, write.slot, write.bits);
}

void Content::CheckSums(const model::Batch& batch) {
  const kv::Layout& layout = SimLayout();
  wrong_.assign(batch.tables.size(), false);
  for (size_t table = 0; table < batch.sums.size(); ++table) {
    for (size_t page = 0; page < batch.sums[table].size(); ++page) {
      for (size_t run = 0; run < layout.runs(); ++run) {
        const std::span<const std::byte> bytes(batch.tables[table][page] + run * layout.run_bytes(), layout.run_bytes());
        if (kv::RunChecksum(bytes) != batch.sums[table][page][run]) wrong_[table] = true;
      }
    }
  }
}

void Content::WriteLogits(const model::Batch& batch) {
  logits_.clear();
  for (const model::BatchRow& row : batch.rows) {
    if (!row.wants_logits) continue;
    logits_.resize(logits_.size() + kVocabulary);
    SetLogits(Attend(batch.tables[row.table], 1, row.position + 1), std::span(logits_).last(kVocabulary));
  }
}

}  // namespace cofferdam::sim
