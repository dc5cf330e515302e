// Attention over pages: K and V of rows written into them, and queries answered from them.
//
// What one query computes is a function of its own vector and of the slots below its count, bit for bit (I13): scores
// are one fused-multiply-add chain over the dimensions, softmax runs online over blocks of kBlockTokens at fixed
// positions, and V is summed position after position. How queries are tiled changes only which of them share loads.
#ifndef COFFERDAM_MODEL_ATTENTION_H_
#define COFFERDAM_MODEL_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cofferdam::model {

inline constexpr uint32_t kBlockTokens = 128;  // of one step of the online softmax
inline constexpr uint32_t kTileQueries = 16;   // that share loads of K and V
inline constexpr uint32_t kMaxAttentionHeadSize = 512;

// Compares the bytes of sealed pages with their run checksums, each page once, just before attention reads them: they
// are in the cache then. Of one (sequence, layer, KV head) and one thread.
class RunChecker {
 public:
  // `sums[p]` are the run checksums of page p, of which `run` is this one's; the run's bytes start at `offset` of a payload.
  RunChecker(std::span<const uint64_t* const> sums, size_t run, size_t offset, size_t bytes)
      : sums_(sums), run_(run), offset_(offset), bytes_(bytes) {}
  // Before pages up to `last` are read.
  void CheckThrough(std::byte* const* pages, uint32_t last) {
    for (; next_ <= last && next_ < sums_.size(); ++next_) Check(pages[next_]);
  }
  bool found_wrong() const { return found_wrong_; }
#ifdef COFFERDAM_FAULTS
  uint64_t cycles() const { return cycles_; }  // spent in comparing
#endif

 private:
  void Check(const std::byte* payload);

  std::span<const uint64_t* const> sums_;
  size_t run_, offset_, bytes_;
  uint32_t next_ = 0;
  bool found_wrong_ = false;
#ifdef COFFERDAM_FAULTS
  uint64_t cycles_ = 0;
#endif
};

// K and V of one (sequence, layer, KV head): page p holds positions p * page_tokens and on. Offsets count from a page's
// payload, as kv::Layout::KOffset and VOffset give them. Views only.
struct KvRun {
  std::byte* const* pages = nullptr;
  size_t k_offset = 0, v_offset = 0;
  uint32_t page_tokens = 0;
  uint32_t head_size = 0;
  RunChecker* checker = nullptr;  // null: nothing is checked
};

// One head of one row. q and out are [head_size] f32 and must not overlap any other query's out.
struct Query {
  const float* q = nullptr;
  float* out = nullptr;
  uint32_t count = 0;  // attends over positions 0 to count - 1; at least 1
};

// Working memory of one thread. Not shared.
class AttentionScratch {
 public:
  explicit AttentionScratch(uint32_t head_size);
  AttentionScratch(AttentionScratch&&) = default;  // the vector's memory stays where it is
  AttentionScratch& operator=(AttentionScratch&&) = default;
  float* queries() { return aligned_; }                                      // [kTileQueries][head_size]
  float* sums() { return aligned_ + kTileQueries * padded_; }                // [kTileQueries][padded]
  float* scores() { return aligned_ + 2 * size_t{kTileQueries} * padded_; }  // [kTileQueries][kBlockTokens]
  uint32_t padded() const { return padded_; }                                // head_size rounded up to 16

 private:
  uint32_t padded_;
  std::vector<float> memory_;
  float* aligned_;
};

// Writes one row's K and V, [head_size] f32 each, as f16 into slot `position`. Different slots may be written at once.
void WriteKv(const KvRun& run, uint32_t position, const float* k, const float* v);

// out = softmax(scale * q K) V for every query, with the fastest kernel this was compiled for.
// REQUIRES: 1 to kTileQueries queries in rising order of count; head_size at most kMaxAttentionHeadSize; the scratch
// was made for this head size; all slots below the largest count are written and nobody writes to them meanwhile.
void Attend(const KvRun& run, float scale, std::span<const Query> queries, AttentionScratch& scratch);

// The same in plain C++: the fallback, and what tests compare Attend with.
void AttendPortable(const KvRun& run, float scale, std::span<const Query> queries, AttentionScratch& scratch);

// "avx512" or "portable".
const char* AttentionKernelName();

namespace internal {
// The pieces of one block: where each group of 16 tokens starts, K as [head_size][16] and V as [16][head_size], f16.
struct Block {
  const uint16_t* k[kBlockTokens / 16];
  const uint16_t* v[kBlockTokens / 16];
};
// Has the checker, where there is one, look at the pages of positions up to first + tokens - 1.
void CheckBlock(const KvRun& run, uint32_t first, uint32_t tokens);
// Fills the groups that hold positions first to first + tokens - 1. REQUIRES: first is a multiple of 16.
void LocateBlock(const KvRun& run, uint32_t first, uint32_t tokens, Block* block);
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define COFFERDAM_HAS_AVX512_ATTENTION 1
void AttendAvx512(const KvRun& run, float scale, std::span<const Query> queries, AttentionScratch& scratch);
#endif
}  // namespace internal

}  // namespace cofferdam::model

#endif  // COFFERDAM_MODEL_ATTENTION_H_
