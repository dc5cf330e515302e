#include "model/attention.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/cycles.h"
#include "kv/layout.h"
#include "kv/seal.h"

namespace cofferdam::model {
namespace {

constexpr uint32_t kGroup = kv::kTokenBlock;
static_assert(kGroup == 16 && kBlockTokens % kGroup == 0, "the kernels handle one K group as one vector of 16");

// q, pre-scaled: [head_size]; k: [head_size][16] f16; scores: 16.
void ScoreGroup(const float* q, const uint16_t* k, uint32_t head_size, float* scores) {
  std::array<float, kGroup> sum{}, row;
  for (uint32_t d = 0; d < head_size; ++d) {
    ggml_cpu_fp16_to_fp32(k + size_t{d} * kGroup, row.data(), kGroup);
    for (uint32_t t = 0; t < kGroup; ++t) sum[t] += q[d] * row[t];
  }
  std::copy(sum.begin(), sum.end(), scores);
}

struct Softmax {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

// Turns scores[0, valid) into exp(score - max) and returns the factor that older sums must be multiplied by.
float SoftmaxBlock(float* scores, uint32_t valid, Softmax& state) {
  const float block_max = *std::max_element(scores, scores + valid);
  const float max = std::max(state.max, block_max);
  const float keep = state.sum == 0 ? 0.0f : std::exp(state.max - max);
  float sum = 0;
  for (uint32_t t = 0; t < valid; ++t) {
    scores[t] = std::exp(scores[t] - max);
    sum += scores[t];
  }
  state.max = max;
  state.sum = state.sum * keep + sum;
  return keep;
}

void AddValues(const internal::Block& block, uint32_t valid, uint32_t head_size, const float* p, float* out) {
  std::array<float, kMaxAttentionHeadSize> row;
  for (uint32_t t = 0; t < valid; ++t) {
    ggml_cpu_fp16_to_fp32(block.v[t / kGroup] + size_t{t % kGroup} * head_size, row.data(), head_size);
    for (uint32_t d = 0; d < head_size; ++d) out[d] += p[t] * row[d];
  }
}

void AttendOne(const KvRun& run, float scale, const Query& query, AttentionScratch& scratch) {
  float* q = scratch.queries();
  float* scores = scratch.scores();
  for (uint32_t d = 0; d < run.head_size; ++d) q[d] = query.q[d] * scale;
  std::fill(query.out, query.out + run.head_size, 0.0f);
  Softmax state;
  for (uint32_t first = 0; first < query.count; first += kBlockTokens) {
    const uint32_t valid = std::min(kBlockTokens, query.count - first);
    internal::CheckBlock(run, first, valid);
    internal::Block block;
    internal::LocateBlock(run, first, valid, &block);
    for (uint32_t g = 0; g * kGroup < valid; ++g) ScoreGroup(q, block.k[g], run.head_size, scores + g * kGroup);
    const float keep = SoftmaxBlock(scores, valid, state);
    for (uint32_t d = 0; d < run.head_size; ++d) query.out[d] *= keep;
    AddValues(block, valid, run.head_size, scores, query.out);
  }
  const float share = 1.0f / state.sum;
  for (uint32_t d = 0; d < run.head_size; ++d) query.out[d] *= share;
}

}  // namespace

AttentionScratch::AttentionScratch(uint32_t head_size)
    : padded_((head_size + 15) / 16 * 16), memory_(size_t{kTileQueries} * (2 * padded_ + kBlockTokens) + 16) {
  const auto start = reinterpret_cast<uintptr_t>(memory_.data());
  aligned_ = memory_.data() + (64 - start % 64) % 64 / sizeof(float);
}

void RunChecker::Check(const std::byte* payload) {
#ifdef COFFERDAM_FAULTS
  const uint64_t start = CycleCounter();
#endif
  if (kv::RunChecksum({payload + offset_, bytes_}) != sums_[next_][run_]) found_wrong_ = true;
#ifdef COFFERDAM_FAULTS
  cycles_ += CycleCounter() - start;
#endif
}

void internal::CheckBlock(const KvRun& run, uint32_t first, uint32_t tokens) {
  if (run.checker != nullptr) run.checker->CheckThrough(run.pages, (first + tokens - 1) / run.page_tokens);
}

void internal::LocateBlock(const KvRun& run, uint32_t first, uint32_t tokens, Block* block) {
  uint32_t page = first / run.page_tokens, slot = first % run.page_tokens;
  for (uint32_t g = 0; g * kGroup < tokens; ++g) {
    const std::byte* payload = run.pages[page];
    const size_t element = size_t{slot} * run.head_size;
    block->k[g] = reinterpret_cast<const uint16_t*>(payload + run.k_offset) + element;
    block->v[g] = reinterpret_cast<const uint16_t*>(payload + run.v_offset) + element;
    slot += kGroup;
    if (slot == run.page_tokens) {
      slot = 0;
      ++page;
    }
  }
}

void WriteKv(const KvRun& run, uint32_t position, const float* k, const float* v) {
  std::byte* payload = run.pages[position / run.page_tokens];
  const uint32_t slot = position % run.page_tokens;
  std::array<ggml_fp16_t, kMaxAttentionHeadSize> half;
  ggml_cpu_fp32_to_fp16(k, half.data(), run.head_size);
  // As kv::Layout::KElement: [slot / 16][dimension][slot % 16].
  auto* k_out =
      reinterpret_cast<ggml_fp16_t*>(payload + run.k_offset) + size_t{slot / kGroup} * run.head_size * kGroup + slot % kGroup;
  for (uint32_t d = 0; d < run.head_size; ++d) k_out[size_t{d} * kGroup] = half[d];
  ggml_cpu_fp32_to_fp16(v, reinterpret_cast<ggml_fp16_t*>(payload + run.v_offset) + size_t{slot} * run.head_size, run.head_size);
}

void AttendPortable(const KvRun& run, float scale, std::span<const Query> queries, AttentionScratch& scratch) {
  for (const Query& query : queries) AttendOne(run, scale, query, scratch);
}

void Attend(const KvRun& run, float scale, std::span<const Query> queries, AttentionScratch& scratch) {
#ifdef COFFERDAM_HAS_AVX512_ATTENTION
  internal::AttendAvx512(run, scale, queries, scratch);
#else
  AttendPortable(run, scale, queries, scratch);
#endif
}

const char* AttentionKernelName() {
#ifdef COFFERDAM_HAS_AVX512_ATTENTION
  return "avx512";
#else
  return "portable";
#endif
}

}  // namespace cofferdam::model
