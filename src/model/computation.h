// What an engine has computed: a batch of rows over pages. The executor does it with a model's weights.
#ifndef COFFERDAM_MODEL_COMPUTATION_H_
#define COFFERDAM_MODEL_COMPUTATION_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/strong_id.h"

namespace cofferdam::model {

// One token of one sequence.
struct BatchRow {
  TokenId token = 0;
  uint32_t position = 0;  // in its sequence, from 0
  uint32_t table = 0;     // index into Batch::tables
  bool wants_logits = false;
};

// The sealed pages of one table whose bytes are to be checked as they are read: run checksums of page j at [j], each
// [layout runs], as kv::RunChecksums gives them. Pages past the end are not sealed, and not checked.
using SealedSums = std::span<const uint64_t* const>;

// Views; the caller keeps what they show alive and unchanged until Run returns.
struct Batch {
  std::span<const BatchRow> rows;
  // tables[i][j]: payload (behind the head tag) of page j of sequence i, 64-byte aligned.
  std::span<const std::span<std::byte* const>> tables;
  // Empty: nothing is checked. Else one entry a table.
  std::span<const SealedSums> sums{};
};

// One thread uses a computation at a time.
class Computation {
 public:
  virtual ~Computation() = default;

  // Writes K and V of every row into slot position % page_tokens of page position / page_tokens of its table, attends
  // over positions 0 to position, and returns the logits, [rows that want them, in order][vocabulary] f32, valid until
  // the next call. All writes of a layer come before any read of that layer.
  // REQUIRES: rows of one table stand next to each other at consecutive rising positions; all earlier positions of the
  // table are written; no page is in two tables.
  // Errors: InvalidArgument, before anything is written, when there are no or too many rows, a token is not in the
  // vocabulary, a table or page is missing, or positions do not follow each other. Internal: the computation failed,
  // and the rows' slots hold anything.
  virtual absl::StatusOr<std::span<const float>> Run(const Batch& batch) = 0;
  // The same for layer 0 alone, whose K and V depend on token and position only: it writes them, and no logits come of it.
  // Rows may stand in any order and at any position, each slot once. Only layer 0's part of every page must be there (the
  // first kv_heads * layout.run_bytes() bytes of its payload).
  virtual absl::Status RunFirstLayer(const Batch& batch) = 0;
  // Whether the last Run read bytes of `table` that are not those of its checksums (Batch::sums).
  virtual bool ReadWrongBytes(uint32_t table) const = 0;
  // Logits of one row.
  virtual uint32_t vocabulary() const = 0;

 protected:
  Computation() = default;
};

}  // namespace cofferdam::model

#endif  // COFFERDAM_MODEL_COMPUTATION_H_
