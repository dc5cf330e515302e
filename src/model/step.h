// What one step's custom operators work on: the batch, cut into pieces that threads take one by one.
#ifndef COFFERDAM_MODEL_STEP_H_
#define COFFERDAM_MODEL_STEP_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kv/layout.h"
#include "model/attention.h"
#include "model/executor.h"
#include "model/hparams.h"

namespace cofferdam::model {

// One attention tile: some heads (of one KV head) of some rows (of one table, rising).
struct AttentionItem {
  uint32_t table = 0;
  uint32_t kv_head = 0;
  uint32_t first_head = 0, heads = 0;
  uint32_t first = 0, rows = 0;  // a range of Step's list of rows, below
  bool first_of_run = false;     // of all that read this table and KV head: the one that checks what it reads
};

// Owned by the executor and filled anew for every step. While a graph runs, its threads read it, and only take items
// through the counters. Rows from `real_rows` on are padding: they own no slot and their attention is zero.
class Step {
 public:
  Step(const Hparams& hparams, const kv::Layout& layout, int threads);

  // REQUIRES: the batch was validated. `padded_rows` and `padded_outputs` are 0 or at least the real counts.
  void Begin(const Batch& batch, uint32_t padded_rows, uint32_t padded_outputs);

  uint32_t padded_rows() const { return padded_rows_; }
  uint32_t padded_outputs() const { return padded_outputs_; }
  uint32_t real_outputs() const { return static_cast<uint32_t>(output_rows_.size()); }
  // After the graph has run: whether a table's bytes were not those of its checksums.
  bool ReadWrongBytes(uint32_t table) const { return table < wrong_.size() && wrong_[table].load(std::memory_order_relaxed); }
#ifdef COFFERDAM_FAULTS
  // Of all threads and steps, in the checks of sealed pages' bytes; for the benchmark of what checks cost.
  uint64_t check_cycles() const { return check_cycles_.load(std::memory_order_relaxed); }
#endif
  // Batch row of output i; padding repeats the last.
  uint32_t OutputRow(uint32_t i) const { return output_rows_[i < output_rows_.size() ? i : output_rows_.size() - 1]; }

  // The two operators' bodies, run by every thread of the graph. Strides are in floats between rows.
  struct KvInput {
    const float *k, *v;  // [padded_rows][kv_heads * head_size]
    size_t k_stride, v_stride;
  };
  void WriteLayer(uint32_t layer, const KvInput& input, int thread, int threads);
  struct AttentionInput {
    const float* q;  // [padded_rows][heads * head_size]
    float* out;      // [padded rows or outputs][heads * head_size]
    size_t q_stride, out_stride;
  };
  // `outputs_only`: answers only the rows that want logits, into consecutive rows of `out`.
  void AttendLayer(uint32_t layer, bool outputs_only, const AttentionInput& input, int thread);

 private:
  KvRun RunOf(uint32_t layer, uint32_t kv_head, uint32_t table) const;
  std::vector<AttentionItem> MakeItems(std::span<const uint32_t> rows) const;
  void AttendItem(const AttentionItem& item, std::span<const uint32_t> rows, const KvRun& run, const AttentionInput& input,
                  AttentionScratch& scratch) const;
  // The same, and checks the sealed pages' bytes as they are read.
  void AttendChecked(uint32_t layer, const AttentionItem& item, std::span<const uint32_t> rows, KvRun run,
                     const AttentionInput& input, AttentionScratch& scratch);

  const Hparams& hparams_;
  const kv::Layout& layout_;
  const uint32_t group_;  // query heads per KV head
  Batch batch_;
  uint32_t padded_rows_ = 0, padded_outputs_ = 0;
  std::vector<uint32_t> all_rows_, output_rows_;  // batch rows, in order
  std::vector<AttentionItem> all_items_, output_items_;
  std::unique_ptr<std::atomic<uint32_t>[]> next_item_;  // [layers]
  std::vector<AttentionScratch> scratch_;               // [threads]
  std::deque<std::atomic<bool>> wrong_;                 // [tables] of the batch, at least
#ifdef COFFERDAM_FAULTS
  std::atomic<uint64_t> check_cycles_ = 0;
#endif
};

// Errors: InvalidArgument, as Executor::Run says. Without attention (`any_order`) rows need not follow each other.
absl::Status ValidateBatch(const Batch& batch, const Hparams& hparams, uint32_t page_tokens, uint32_t max_rows,
                           bool any_order = false);

}  // namespace cofferdam::model

#endif  // COFFERDAM_MODEL_STEP_H_
