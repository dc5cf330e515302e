// Runs a model over a batch of rows: writes their K and V into pages, attends through page tables, returns logits.
#ifndef COFFERDAM_MODEL_EXECUTOR_H_
#define COFFERDAM_MODEL_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/strong_id.h"
#include "model/model.h"

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

struct ExecutorOptions {
  int threads = 1;          // the caller's thread is one of them
  std::vector<int> cpus{};  // the caller runs on the first, the other threads on the rest in turn; empty: no pinning
  uint32_t max_rows = 512;  // of one batch; bounds the activations' memory
};

// One thread uses an executor at a time; it owns its thread pool and its activations. It keeps the model alive.
// With `cpus` given, Run pins the thread that calls it to the first of them, and leaves it so.
class Executor {
 public:
  // Errors: InvalidArgument (options), ResourceExhausted (memory, threads).
  static absl::StatusOr<std::unique_ptr<Executor>> Create(std::shared_ptr<const Model> model, ExecutorOptions options);

  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Writes K and V of every row into slot position % page_tokens of page position / page_tokens of its table, attends
  // over positions 0 to position, and returns the logits, [rows that want them, in order][vocabulary] f32, valid until
  // the next call of Run or SelfTest. All writes of a layer come before any read of that layer.
  // REQUIRES: rows of one table stand next to each other at consecutive rising positions; all earlier positions of the
  // table are written; no page is in two tables.
  // Errors: InvalidArgument, before anything is written, when there are no or too many rows, a token is not in the
  // vocabulary, a table or page is missing, or positions do not follow each other. Internal: the computation failed,
  // and the rows' slots hold anything.
  absl::StatusOr<std::span<const float>> Run(const Batch& batch);
  // The same for layer 0 alone, whose K and V depend on token and position only: it writes them, and no logits come of it.
  // Rows may stand in any order and at any position, each slot once. Only layer 0's part of every page must be there (the
  // first kv_heads * layout.run_bytes() bytes of its payload).
  absl::Status RunFirstLayer(const Batch& batch);
  // Whether the last Run read bytes of `table` that are not those of its checksums (Batch::sums).
  bool ReadWrongBytes(uint32_t table) const;
#ifdef COFFERDAM_FAULTS
  uint64_t check_cycles() const;  // as Step's
#endif

  // Non-interference (I13), shown on the real weights and on pages of its own: the bits of a row's logits are compared
  // alone, in batches of several sizes, and with the prompt cut into chunks. FailedPrecondition names the case in which
  // they differ. Takes about as long as the prefill of a few hundred tokens.
  absl::Status SelfTest();

  const Model& model() const;

 private:
  struct State;
  absl::StatusOr<std::span<const float>> RunLayers(const Batch& batch, bool first_layer_only);
  explicit Executor(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cofferdam::model

#endif  // COFFERDAM_MODEL_EXECUTOR_H_
