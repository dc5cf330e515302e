// The AVX-512 attention kernel. Registers hold one dimension of 16 tokens (scores) or 16 dimensions of one token
// (values); every query's own chain of operations is the same whatever tile it is part of.
//
// A step reads every page once, from memory, and the processor's own prefetchers stop at the end of each run. So while
// a block is computed, the lines of the next one are asked for, a few at each turn of the inner loops; what is checked
// and computed next then lies in the cache.
#include "model/attention.h"

#ifdef COFFERDAM_HAS_AVX512_ATTENTION

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace cofferdam::model::internal {
namespace {

constexpr uint32_t kLanes = 16;
constexpr uint32_t kGroups = kBlockTokens / kLanes;

inline __m512 LoadHalf(const uint16_t* from) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }

inline __m512 LoadHalf(const uint16_t* from, __mmask16 mask) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from)); }

inline void Prefetch(const uint16_t* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }

// The block that is computed and the one that comes after it. Where no block or group comes, `next` holds those of `now`,
// so that asking for them costs nothing.
struct Blocks {
  Block now{}, next{};
};

// Moves on to the block at `first`.
void Advance(const KvRun& run, uint32_t first, uint32_t longest, Blocks& blocks) {
  if (first == 0) LocateBlock(run, 0, std::min(kBlockTokens, longest), &blocks.next);
  blocks.now = blocks.next;
  const uint32_t end = first + kBlockTokens;
  if (end < longest) LocateBlock(run, end, std::min(kBlockTokens, longest - end), &blocks.next);
}

// exp(x) for x <= 0, zero below -80; within 2 units in the last place. Cody and Waite's reduction by ln 2, a Taylor
// polynomial of degree 6 on [-ln 2 / 2, ln 2 / 2]; exp(0) is exactly 1.
inline __m512 Exp(__m512 x) {
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-80.0f), _CMP_GE_OQ);
  const __m512 n =
      _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.0f / 720);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(normal, p, n);
}

// Scores of N queries over T groups of 16 tokens. q: [N][head_size], scores: [N][kBlockTokens]; ahead: the groups of the
// next block.
template <int N, int T>
void ScoreGroups(const float* q, uint32_t head_size, const uint16_t* const* k, const uint16_t* const* ahead, float* scores) {
  __m512 sum[N][T];
  for (int n = 0; n < N; ++n) {
    for (int t = 0; t < T; ++t) sum[n][t] = _mm512_setzero_ps();
  }
  for (uint32_t d = 0; d < head_size; ++d) {
    __m512 keys[T];
    for (int t = 0; t < T; ++t) keys[t] = LoadHalf(k[t] + size_t{d} * kLanes);
    if (d % 2 == 0) {  // two dimensions share a cache line
      for (int t = 0; t < T; ++t) Prefetch(ahead[t] + size_t{d} * kLanes);
    }
    for (int n = 0; n < N; ++n) {
      const __m512 query = _mm512_set1_ps(q[static_cast<uint32_t>(n) * head_size + d]);
      for (int t = 0; t < T; ++t) sum[n][t] = _mm512_fmadd_ps(query, keys[t], sum[n][t]);
    }
  }
  for (int n = 0; n < N; ++n) {
    for (int t = 0; t < T; ++t) _mm512_storeu_ps(scores + static_cast<size_t>(n) * kBlockTokens + t * kLanes, sum[n][t]);
  }
}

template <int N>
void ScoreQueries(const float* q, uint32_t head_size, const Blocks& blocks, uint32_t groups, float* scores) {
  const uint16_t* const* k = blocks.now.k;
  const uint16_t* const* ahead = blocks.next.k;
  constexpr int kWide = N <= 4 ? 4 : 2;  // enough independent chains to hide the latency of one
  uint32_t g = 0;
  for (; g + kWide <= groups; g += kWide) ScoreGroups<N, kWide>(q, head_size, k + g, ahead + g, scores + g * kLanes);
  for (; g < groups; ++g) ScoreGroups<N, 1>(q, head_size, k + g, ahead + g, scores + g * kLanes);
}

void Scores(const float* q, uint32_t head_size, uint32_t queries, const Blocks& blocks, uint32_t groups, float* scores) {
  while (queries > 0) {
    const uint32_t step = queries >= 8 ? 8 : queries >= 4 ? 4 : queries >= 2 ? 2 : 1;
    switch (step) {
      case 8:
        ScoreQueries<8>(q, head_size, blocks, groups, scores);
        break;
      case 4:
        ScoreQueries<4>(q, head_size, blocks, groups, scores);
        break;
      case 2:
        ScoreQueries<2>(q, head_size, blocks, groups, scores);
        break;
      default:
        ScoreQueries<1>(q, head_size, blocks, groups, scores);
        break;
    }
    queries -= step;
    q += size_t{step} * head_size;
    scores += size_t{step} * kBlockTokens;
  }
}

struct Softmax {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

inline __mmask16 ValidLanes(uint32_t valid, uint32_t group) {
  const uint32_t left = valid - group * kLanes;
  return left >= kLanes ? __mmask16{0xffff} : static_cast<__mmask16>((1u << left) - 1);
}

// Turns scores[0, valid) into exp(score - max), in place, and returns the factor for the older sums.
float SoftmaxBlock(float* scores, uint32_t valid, Softmax& state) {
  const uint32_t groups = (valid + kLanes - 1) / kLanes;
  const __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  __m512 top = lowest;
  for (uint32_t g = 0; g < groups; ++g) {
    top = _mm512_max_ps(top, _mm512_mask_loadu_ps(lowest, ValidLanes(valid, g), scores + g * kLanes));
  }
  const float max = std::max(state.max, _mm512_reduce_max_ps(top));
  __m512 sum = _mm512_setzero_ps();
  for (uint32_t g = 0; g < groups; ++g) {
    const __mmask16 lanes = ValidLanes(valid, g);
    const __m512 p = _mm512_maskz_mov_ps(lanes, Exp(_mm512_sub_ps(_mm512_loadu_ps(scores + g * kLanes), _mm512_set1_ps(max))));
    _mm512_storeu_ps(scores + g * kLanes, p);
    sum = _mm512_add_ps(sum, p);
  }
  const float keep = state.sum == 0 ? 0.0f : _mm512_cvtss_f32(Exp(_mm512_set1_ps(state.max - max)));
  state.max = max;
  state.sum = std::fma(state.sum, keep, _mm512_reduce_add_ps(sum));
  return keep;
}

// What values are added to: sums[n] = keep[n] * sums[n] + p[n][t] * v[t] over tokens [from, to) of the block.
struct ValueJob {
  const Blocks* blocks;
  uint32_t from, to;
  uint32_t head_size, stride;  // stride: of sums
  const float* p;              // [N][kBlockTokens]
  const float* keep;           // [N]
  float* sums;                 // [N][stride]
};

// N queries, V vectors of 16 dimensions from dimension `first`, the last of them only as far as `mask` says.
template <int N, int V>
void AddValues(const ValueJob& job, uint32_t first, __mmask16 mask) {
  __m512 sum[N][V];
  for (int n = 0; n < N; ++n) {
    const __m512 keep = _mm512_set1_ps(job.keep[n]);
    for (int v = 0; v < V; ++v) {
      sum[n][v] = _mm512_mul_ps(_mm512_loadu_ps(job.sums + static_cast<size_t>(n) * job.stride + first + v * kLanes), keep);
    }
  }
  for (uint32_t t = job.from; t < job.to; ++t) {
    const size_t at = size_t{t % kLanes} * job.head_size + first;
    const uint16_t* row = job.blocks->now.v[t / kLanes] + at;
    for (int v = 0; v < V; v += 2) Prefetch(job.blocks->next.v[t / kLanes] + at + v * kLanes);
    __m512 values[V];
    for (int v = 0; v + 1 < V; ++v) values[v] = LoadHalf(row + v * kLanes);
    values[V - 1] = LoadHalf(row + (V - 1) * kLanes, mask);
    for (int n = 0; n < N; ++n) {
      const __m512 p = _mm512_set1_ps(job.p[static_cast<size_t>(n) * kBlockTokens + t]);
      for (int v = 0; v < V; ++v) sum[n][v] = _mm512_fmadd_ps(p, values[v], sum[n][v]);
    }
  }
  for (int n = 0; n < N; ++n) {
    for (int v = 0; v < V; ++v) _mm512_storeu_ps(job.sums + static_cast<size_t>(n) * job.stride + first + v * kLanes, sum[n][v]);
  }
}

template <int N>
void AddAllDimensions(const ValueJob& job) {
  uint32_t first = 0;
  for (; first + 4 * kLanes <= job.head_size; first += 4 * kLanes) AddValues<N, 4>(job, first, 0xffff);
  const uint32_t rest = job.head_size - first;
  if (rest == 0) return;
  const auto mask = static_cast<__mmask16>(rest % kLanes == 0 ? 0xffffu : (1u << (rest % kLanes)) - 1);
  switch ((rest + kLanes - 1) / kLanes) {
    case 4:
      AddValues<N, 4>(job, first, mask);
      break;
    case 3:
      AddValues<N, 3>(job, first, mask);
      break;
    case 2:
      AddValues<N, 2>(job, first, mask);
      break;
    default:
      AddValues<N, 1>(job, first, mask);
      break;
  }
}

void Values(ValueJob job, uint32_t queries) {
  while (queries > 0) {
    const uint32_t step = std::min(queries, 4u);
    switch (step) {
      case 4:
        AddAllDimensions<4>(job);
        break;
      case 3:
        AddAllDimensions<3>(job);
        break;
      case 2:
        AddAllDimensions<2>(job);
        break;
      default:
        AddAllDimensions<1>(job);
        break;
    }
    queries -= step;
    job.p += size_t{step} * kBlockTokens;
    job.keep += step;
    job.sums += size_t{step} * job.stride;
  }
}

}  // namespace

void AttendAvx512(const KvRun& run, float scale, std::span<const Query> queries, AttentionScratch& scratch) {
  const auto count = static_cast<uint32_t>(queries.size());
  const uint32_t size = run.head_size, stride = scratch.padded();
  Softmax state[kTileQueries];
  for (uint32_t n = 0; n < count; ++n) {
    for (uint32_t d = 0; d < size; ++d) scratch.queries()[n * size + d] = queries[n].q[d] * scale;
  }
  std::fill(scratch.sums(), scratch.sums() + size_t{count} * stride, 0.0f);
  const uint32_t longest = queries.back().count;
  Blocks blocks;
  for (uint32_t first = 0; first < longest; first += kBlockTokens) {
    // Queries rise in count, so those that still reach into this block are the last ones.
    uint32_t from = 0;
    while (queries[from].count <= first) ++from;
    const uint32_t active = count - from;
    const uint32_t tokens = std::min(kBlockTokens, longest - first);
    Advance(run, first, longest, blocks);
    CheckBlock(run, first, tokens);
    float* scores = scratch.scores() + size_t{from} * kBlockTokens;
    Scores(scratch.queries() + size_t{from} * size, size, active, blocks, (tokens + kLanes - 1) / kLanes, scores);
    float keep[kTileQueries], one[kTileQueries];
    uint32_t valid[kTileQueries];
    for (uint32_t n = 0; n < active; ++n) {
      valid[n] = std::min(kBlockTokens, queries[from + n].count - first);
      keep[n] = SoftmaxBlock(scores + size_t{n} * kBlockTokens, valid[n], state[from + n]);
      one[n] = 1.0f;
    }
    // All active queries see the first valid[0] tokens; what only later rows see is added for each alone, so that a
    // slot past a query's end is never multiplied into it, not even by zero.
    float* sums = scratch.sums() + size_t{from} * stride;
    Values({&blocks, 0, valid[0], size, stride, scores, keep, sums}, active);
    for (uint32_t n = 0; n < active; ++n) {
      if (valid[n] == valid[0]) continue;
      Values({&blocks, valid[0], valid[n], size, stride, scores + size_t{n} * kBlockTokens, one, sums + size_t{n} * stride}, 1);
    }
  }
  for (uint32_t n = 0; n < count; ++n) {
    const float share = 1.0f / state[n].sum;
    // Adding zero makes minus zero plus zero, so that underflows leave no trace of how tokens were grouped.
    for (uint32_t d = 0; d < size; ++d) queries[n].out[d] = scratch.sums()[size_t{n} * stride + d] * share + 0.0f;
  }
}

}  // namespace cofferdam::model::internal

#endif  // COFFERDAM_HAS_AVX512_ATTENTION
