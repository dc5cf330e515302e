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
#include "model/computation.h"
#include "model/model.h"

namespace cofferdam::model {

struct ExecutorOptions {
  int threads = 1;          // the caller's thread is one of them
  std::vector<int> cpus{};  // the caller runs on the first, the other threads on the rest in turn; empty: no pinning
  uint32_t max_rows = 512;  // of one batch; bounds the activations' memory
};

// One thread uses an executor at a time; it owns its thread pool and its activations. It keeps the model alive.
// With `cpus` given, Run pins the thread that calls it to the first of them, and leaves it so.
class Executor final : public Computation {
 public:
  // Errors: InvalidArgument (options), ResourceExhausted (memory, threads).
  static absl::StatusOr<std::unique_ptr<Executor>> Create(std::shared_ptr<const Model> model, ExecutorOptions options);

  ~Executor() override;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Run leaves the logits valid until the next call of Run or SelfTest.
  absl::StatusOr<std::span<const float>> Run(const Batch& batch) override;
  absl::Status RunFirstLayer(const Batch& batch) override;
  bool ReadWrongBytes(uint32_t table) const override;
  uint32_t vocabulary() const override { return model().info().vocabulary; }
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
