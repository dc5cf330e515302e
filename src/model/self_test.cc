#include "model/self_test.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/scratch_pages.h"

namespace cofferdam::model {
namespace {

constexpr uint32_t kTokens = 21;      // of the test sequence: no multiple of any tile
constexpr uint32_t kOtherTokens = 3;  // of each sequence that shares a batch with it
constexpr uint32_t kMaxOthers = 32;

class Tester {
 public:
  Tester(Executor& executor, uint32_t max_rows)
      : executor_(executor), max_rows_(max_rows), vocabulary_(executor.model().info().vocabulary) {
    for (uint32_t i = 0; i <= std::min(kMaxOthers, max_rows - 1); ++i) {
      sequences_.emplace_back(executor.model().layout(), i == 0 ? kTokens : kOtherTokens);
    }
    for (const ScratchPages& pages : sequences_) tables_.push_back(pages.table());
  }

  absl::Status Run() {
    if (auto status = RowByRow(); !status.ok()) return status;
    for (const uint32_t chunk : {2u, 3u, 4u, 5u, 7u, 8u, 9u, 16u, kTokens}) {
      if (chunk > max_rows_) break;
      if (auto status = Chunked(chunk); !status.ok()) return status;
    }
    for (const uint32_t others : {1u, 2u, 3u, 4u, 6u, 7u, 15u, kMaxOthers}) {
      if (others + 1 > max_rows_) break;
      if (auto status = AmongOthers(others); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  TokenId Token(uint32_t sequence, uint32_t position) const {
    return static_cast<TokenId>((uint64_t{sequence} * 7919 + uint64_t{position} * 104729 + 13) % vocabulary_);
  }

  BatchRow Row(uint32_t sequence, uint32_t position, bool wants) const {
    return {.token = Token(sequence, position), .position = position, .table = sequence, .wants_logits = wants};
  }

  absl::StatusOr<std::span<const float>> Compute(const std::vector<BatchRow>& rows) {
    return executor_.Run({.rows = rows, .tables = tables_});
  }

  // What every other case must repeat bit for bit: the sequence, one token a step, alone.
  absl::Status RowByRow() {
    for (uint32_t position = 0; position < kTokens; ++position) {
      auto logits = Compute({Row(0, position, true)});
      if (!logits.ok()) return logits.status();
      expected_.insert(expected_.end(), logits->begin(), logits->end());
    }
    return absl::OkStatus();
  }

  absl::Status Compare(std::span<const float> logits, uint32_t position, const std::string& what) const {
    if (std::memcmp(logits.data(), expected_.data() + size_t{position} * vocabulary_, vocabulary_ * sizeof(float)) == 0)
      return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("non-interference (I13) does not hold for this model on this processor: position ", position,
                     " has other logits ", what, " than alone"));
  }

  absl::Status Chunked(uint32_t chunk) {
    sequences_[0].Clear();
    for (uint32_t from = 0; from < kTokens; from += chunk) {
      const uint32_t to = std::min(from + chunk, kTokens);
      std::vector<BatchRow> rows;
      // Every second chunk wants all logits, the others only the last row's, as a prompt's end does.
      const bool all = from / chunk % 2 == 0;
      for (uint32_t p = from; p < to; ++p) rows.push_back(Row(0, p, all || p + 1 == to));
      auto logits = Compute(rows);
      if (!logits.ok()) return logits.status();
      for (uint32_t p = all ? from : to - 1; p < to; ++p) {
        const size_t index = all ? p - from : 0;
        if (auto status = Compare(logits->subspan(index * vocabulary_), p, absl::StrCat("in chunks of ", chunk)); !status.ok())
          return status;
      }
    }
    return absl::OkStatus();
  }

  // The last token once more, with `others` sequences before and behind it in the batch.
  absl::Status AmongOthers(uint32_t others) {
    std::vector<BatchRow> rows;
    for (uint32_t i = 1; i <= others; ++i) {
      if (i == others / 2 + 1) rows.push_back(Row(0, kTokens - 1, true));
      for (uint32_t p = 0; p < std::min(kOtherTokens, others % 3 + 1) && rows.size() + others - i + 1 < max_rows_; ++p)
        rows.push_back(Row(i, p, false));
    }
    auto logits = Compute(rows);
    if (!logits.ok()) return logits.status();
    return Compare(*logits, kTokens - 1, absl::StrCat("in a batch of ", rows.size(), " rows"));
  }

  Executor& executor_;
  const uint32_t max_rows_;
  const uint32_t vocabulary_;
  std::vector<ScratchPages> sequences_;
  std::vector<std::span<std::byte* const>> tables_;
  std::vector<float> expected_;  // [kTokens][vocabulary]
};

}  // namespace

absl::Status RunSelfTest(Executor& executor, uint32_t max_rows) { return Tester(executor, max_rows).Run(); }

}  // namespace cofferdam::model
