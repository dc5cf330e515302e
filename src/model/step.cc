#include "model/step.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace cofferdam::model {
namespace {

constexpr uint32_t kMaxPosition = 1u << 30;  // ggml's positions are int32

absl::Status BadRow(size_t index, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("batch row ", index, ": ", std::string(what)));
}

}  // namespace

absl::Status ValidateBatch(const Batch& batch, const Hparams& hparams, uint32_t page_tokens, uint32_t max_rows, bool any_order) {
  if (batch.rows.empty() || batch.rows.size() > max_rows) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", batch.rows.size(), " rows; it must have 1 to ", max_rows));
  }
  std::vector<bool> seen(batch.tables.size());
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const BatchRow& row = batch.rows[i];
    if (row.token < 0 || static_cast<uint32_t>(row.token) >= hparams.vocabulary)
      return BadRow(i, "the token is not in the vocabulary");
    if (row.table >= batch.tables.size()) return BadRow(i, "its table does not exist");
    if (row.position >= kMaxPosition || row.position / page_tokens >= batch.tables[row.table].size()) {
      return BadRow(i, "its position lies past the table's pages");
    }
    if (any_order) continue;
    const bool follows = i > 0 && batch.rows[i - 1].table == row.table;
    if (follows && batch.rows[i - 1].position + 1 != row.position) return BadRow(i, "its position does not follow the row before");
    if (!follows && seen[row.table]) return BadRow(i, "its table's rows do not stand together");
    seen[row.table] = true;
  }
  for (size_t t = 0; t < batch.tables.size(); ++t) {
    for (const std::byte* page : batch.tables[t]) {
      if (page == nullptr) return absl::InvalidArgumentError(absl::StrCat("table ", t, " holds a null page"));
    }
  }
  if (batch.sums.empty()) return absl::OkStatus();
  if (batch.sums.size() != batch.tables.size()) return absl::InvalidArgumentError("checksums for some of the tables only");
  for (size_t t = 0; t < batch.tables.size(); ++t) {
    if (batch.sums[t].size() > batch.tables[t].size())
      return absl::InvalidArgumentError(absl::StrCat("table ", t, " has more checksums than pages"));
  }
  return absl::OkStatus();
}

Step::Step(const Hparams& hparams, const kv::Layout& layout, int threads)
    : hparams_(hparams),
      layout_(layout),
      group_(hparams.heads / hparams.kv_heads),
      next_item_(std::make_unique<std::atomic<uint32_t>[]>(hparams.layers)) {
  for (int i = 0; i < threads; ++i) scratch_.emplace_back(hparams.head_size);
}

void Step::Begin(const Batch& batch, uint32_t padded_rows, uint32_t padded_outputs) {
  batch_ = batch;
  padded_rows_ = padded_rows;
  padded_outputs_ = padded_outputs;
  all_rows_.clear();
  output_rows_.clear();
  for (uint32_t i = 0; i < batch.rows.size(); ++i) {
    all_rows_.push_back(i);
    if (batch.rows[i].wants_logits) output_rows_.push_back(i);
  }
  all_items_ = MakeItems(all_rows_);
  output_items_ = MakeItems(output_rows_);
  for (uint32_t layer = 0; layer < hparams_.layers; ++layer) next_item_[layer].store(0, std::memory_order_relaxed);
  while (wrong_.size() < batch.tables.size()) wrong_.emplace_back(false);
  for (std::atomic<bool>& wrong : wrong_) wrong.store(false, std::memory_order_relaxed);
}

std::vector<AttentionItem> Step::MakeItems(std::span<const uint32_t> rows) const {
  const uint32_t heads = std::min(group_, kTileQueries);
  const uint32_t tile_rows = std::max(1u, kTileQueries / heads);
  std::vector<AttentionItem> items;
  // KV heads outside, so that a sequence's neighbouring tiles find its K and V in the cache.
  for (uint32_t kv_head = 0; kv_head < hparams_.kv_heads; ++kv_head) {
    for (uint32_t first = 0; first < rows.size();) {
      const uint32_t table = batch_.rows[rows[first]].table;
      uint32_t count = 1;
      while (count < tile_rows && first + count < rows.size() && batch_.rows[rows[first + count]].table == table) ++count;
      for (uint32_t head = 0; head < group_; head += heads) {
        items.push_back({.table = table,
                         .kv_head = kv_head,
                         .first_head = kv_head * group_ + head,
                         .heads = std::min(heads, group_ - head),
                         .first = first,
                         .rows = count,
                         .first_of_run = head == 0 && (first == 0 || batch_.rows[rows[first - 1]].table != table)});
      }
      first += count;
    }
  }
  return items;
}

KvRun Step::RunOf(uint32_t layer, uint32_t kv_head, uint32_t table) const {
  return {.pages = batch_.tables[table].data(),
          .k_offset = layout_.KOffset(layer, kv_head),
          .v_offset = layout_.VOffset(layer, kv_head),
          .page_tokens = layout_.page_tokens(),
          .head_size = hparams_.head_size};
}

void Step::WriteLayer(uint32_t layer, const KvInput& input, int thread, int threads) {
  // Neighbouring slots share cache lines of K, so a thread takes whole runs of one head.
  const size_t rows = all_rows_.size(), pairs = rows * hparams_.kv_heads;
  const size_t begin = pairs * static_cast<size_t>(thread) / static_cast<size_t>(threads);
  const size_t end = pairs * (static_cast<size_t>(thread) + 1) / static_cast<size_t>(threads);
  for (size_t i = begin; i < end; ++i) {
    const size_t row = i % rows, head = i / rows;
    const BatchRow& at = batch_.rows[row];
    WriteKv(RunOf(layer, static_cast<uint32_t>(head), at.table), at.position,
            input.k + row * input.k_stride + head * hparams_.head_size, input.v + row * input.v_stride + head * hparams_.head_size);
  }
}

void Step::AttendItem(const AttentionItem& item, std::span<const uint32_t> rows, const KvRun& run, const AttentionInput& input,
                      AttentionScratch& scratch) const {
  Query queries[kTileQueries];
  uint32_t count = 0;
  for (uint32_t r = item.first; r < item.first + item.rows; ++r) {
    const uint32_t row = rows[r];
    for (uint32_t head = item.first_head; head < item.first_head + item.heads; ++head) {
      queries[count++] = {.q = input.q + row * input.q_stride + size_t{head} * hparams_.head_size,
                          .out = input.out + r * input.out_stride + size_t{head} * hparams_.head_size,
                          .count = batch_.rows[row].position + 1};
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(hparams_.head_size));
  Attend(run, scale, std::span<const Query>(queries, count), scratch);
}

void Step::AttendChecked(uint32_t layer, const AttentionItem& item, std::span<const uint32_t> rows, KvRun run,
                         const AttentionInput& input, AttentionScratch& scratch) {
  RunChecker checker(batch_.sums[item.table], size_t{layer} * hparams_.kv_heads + item.kv_head, run.k_offset, layout_.run_bytes());
  run.checker = &checker;
  AttendItem(item, rows, run, input, scratch);
  if (checker.found_wrong()) wrong_[item.table].store(true, std::memory_order_relaxed);
#ifdef COFFERDAM_FAULTS
  check_cycles_.fetch_add(checker.cycles(), std::memory_order_relaxed);
#endif
}

void Step::AttendLayer(uint32_t layer, bool outputs_only, const AttentionInput& input, int thread) {
  const auto& items = outputs_only ? output_items_ : all_items_;
  const auto& rows = outputs_only ? output_rows_ : all_rows_;
  const uint32_t padded = outputs_only ? padded_outputs_ : padded_rows_;
  if (thread == 0) {
    for (size_t r = rows.size(); r < padded; ++r)
      std::memset(input.out + r * input.out_stride, 0, hparams_.query_width() * sizeof(float));
  }
  AttentionScratch& scratch = scratch_[static_cast<size_t>(thread)];
  for (;;) {
    const uint32_t next = next_item_[layer].fetch_add(1, std::memory_order_relaxed);
    if (next >= items.size()) return;
    const AttentionItem& item = items[next];
    const KvRun run = RunOf(layer, item.kv_head, item.table);
    if (item.first_of_run && !batch_.sums.empty()) {
      AttendChecked(layer, item, rows, run, input, scratch);
    } else {
      AttendItem(item, rows, run, input, scratch);
    }
  }
}

}  // namespace cofferdam::model
