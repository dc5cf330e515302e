#include "model/executor.h"

#include <ggml-alloc.h>
#include <ggml-cpu.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "model/graph.h"
#include "model/self_test.h"
#include "model/step.h"

namespace cofferdam::model {
namespace {

constexpr int kMaxThreads = 256;
constexpr uint32_t kMaxRows = 65536;
constexpr size_t kMaxGraphs = 32;  // shapes in use come back: a decode batch of so many rows, a prefill chunk
// Threads wait for the next step awake for a moment only: a prefill or decode worker may share their cores.
constexpr uint32_t kPoll = 10;

absl::Status CheckOptions(const ExecutorOptions& options) {
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("an executor of ", options.threads, " threads; it must have 1 to ", kMaxThreads));
  }
  if (options.max_rows < 1 || options.max_rows > kMaxRows) {
    return absl::InvalidArgumentError(absl::StrCat("batches of ", options.max_rows, " rows; they must have 1 to ", kMaxRows));
  }
  for (const int cpu : options.cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE || cpu >= GGML_MAX_N_THREADS)
      return absl::InvalidArgumentError(absl::StrCat("there is no cpu ", cpu));
  }
  return absl::OkStatus();
}

// As many rows as ggml needs for a row's bits not to depend on their number.
uint32_t Padded(uint32_t rows, const Weights& weights) {
  if (rows == 0) return 0;
  rows = std::max(rows, weights.min_rows);
  return (rows + weights.row_multiple - 1) / weights.row_multiple * weights.row_multiple;
}

// ggml pins the thread that makes a pool; here that is not the thread that computes, so its mask is put back.
class KeepAffinity {
 public:
  KeepAffinity() { valid_ = sched_getaffinity(0, sizeof(mask_), &mask_) == 0; }
  ~KeepAffinity() {
    if (valid_) sched_setaffinity(0, sizeof(mask_), &mask_);
  }
  KeepAffinity(const KeepAffinity&) = delete;
  KeepAffinity& operator=(const KeepAffinity&) = delete;

 private:
  cpu_set_t mask_{};
  bool valid_;
};

// Pins the calling thread to `cpu`, once a thread and cpu. A refusal (a container's mask) only costs speed.
void PinOnce(int cpu) {
  thread_local int pinned = -1;
  if (pinned == cpu) return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<size_t>(cpu), &mask);
  sched_setaffinity(0, sizeof(mask), &mask);
  pinned = cpu;
}

ggml_threadpool_t MakePool(const ExecutorOptions& options) {
  ggml_threadpool_params params = ggml_threadpool_params_default(options.threads);
  params.poll = kPoll;
  // The caller's thread takes the first cpu, the pool's threads the others in turn.
  const size_t first = options.cpus.size() > 1 ? 1 : 0;
  for (size_t i = first; i < options.cpus.size(); ++i) params.cpumask[options.cpus[i]] = true;
  params.strict_cpu = !options.cpus.empty();
  const KeepAffinity keep;
  return ggml_threadpool_new(&params);
}

struct FreePool {
  void operator()(ggml_threadpool* pool) const { ggml_threadpool_free(pool); }
};
struct FreeAllocator {
  void operator()(ggml_gallocr* allocator) const { ggml_gallocr_free(allocator); }
};

}  // namespace

struct Executor::State {
  State(std::shared_ptr<const Model> m, ExecutorOptions o)
      : model(std::move(m)),
        options(std::move(o)),
        step(model->hparams(), model->layout(), options.threads),
        calls(model->hparams().layers) {
    for (uint32_t i = 0; i < calls.size(); ++i) calls[i] = {.step = &step, .layer = i, .outputs_only = i + 1 == calls.size()};
  }

  absl::StatusOr<Graph*> GraphFor(GraphShape shape);
  absl::Status Compute(Graph& graph);

  const std::shared_ptr<const Model> model;
  const ExecutorOptions options;
  Step step;
  std::vector<LayerCall> calls;
  std::unique_ptr<ggml_threadpool, FreePool> pool;
  std::unique_ptr<ggml_gallocr, FreeAllocator> allocator;
  std::list<Graph> graphs;  // most recently used first
  std::vector<uint8_t> work;
};

// Graphs stay allocated in one shared buffer: nothing in it outlives a step, and their addresses hold until it grows.
absl::StatusOr<Graph*> Executor::State::GraphFor(GraphShape shape) {
  for (auto it = graphs.begin(); it != graphs.end(); ++it) {
    if (it->shape == shape) {
      graphs.splice(graphs.begin(), graphs, it);
      return &graphs.front();
    }
  }
  auto graph = BuildGraph(model->hparams(), model->weights(), calls, shape);
  if (!graph.ok()) return graph.status();
  const size_t before = ggml_gallocr_get_buffer_size(allocator.get(), 0);
  if (!ggml_gallocr_alloc_graph(allocator.get(), graph->graph)) {
    graphs.clear();
    return absl::ResourceExhaustedError(absl::StrCat("no memory for the activations of ", shape.rows, " rows"));
  }
  if (ggml_gallocr_get_buffer_size(allocator.get(), 0) != before) graphs.clear();
  if (graphs.size() >= kMaxGraphs) graphs.pop_back();
  graphs.push_front(*std::move(graph));
  return &graphs.front();
}

absl::Status Executor::State::Compute(Graph& graph) {
  ggml_cplan plan = ggml_graph_plan(graph.graph, options.threads, pool.get());
  if (work.size() < plan.work_size) work.resize(plan.work_size);
  plan.work_data = work.data();
  plan.use_ref = model->weights().reference_path;
  const ggml_status status = ggml_graph_compute(graph.graph, &plan);
  if (status != GGML_STATUS_SUCCESS)
    return absl::InternalError(absl::StrCat("the computation failed: ", ggml_status_to_string(status)));
  return absl::OkStatus();
}

Executor::Executor(std::unique_ptr<State> state) : state_(std::move(state)) {}
Executor::~Executor() = default;
const Model& Executor::model() const { return *state_->model; }

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(std::shared_ptr<const Model> model, ExecutorOptions options) {
  if (auto status = CheckOptions(options); !status.ok()) return status;
  ggml_cpu_init();
  auto state = std::make_unique<State>(std::move(model), std::move(options));
  state->pool.reset(MakePool(state->options));
  if (state->pool == nullptr) return absl::ResourceExhaustedError("cannot start the executor's threads");
  state->allocator.reset(ggml_gallocr_new(ggml_backend_cpu_buffer_type()));
  if (state->allocator == nullptr) return absl::ResourceExhaustedError("no memory for activations");
  return std::unique_ptr<Executor>(new Executor(std::move(state)));
}

absl::StatusOr<std::span<const float>> Executor::Run(const Batch& batch) { return RunLayers(batch, false); }

absl::Status Executor::RunFirstLayer(const Batch& batch) { return RunLayers(batch, true).status(); }

absl::StatusOr<std::span<const float>> Executor::RunLayers(const Batch& batch, bool first_layer_only) {
  State& s = *state_;
  const Weights& weights = s.model->weights();
  if (auto status = ValidateBatch(batch, s.model->hparams(), s.model->layout().page_tokens(), s.options.max_rows, first_layer_only);
      !status.ok())
    return status;
  if (!s.options.cpus.empty()) PinOnce(s.options.cpus.front());
  const auto rows = static_cast<uint32_t>(batch.rows.size());
  const auto outputs = first_layer_only ? 0 : static_cast<uint32_t>(std::ranges::count_if(batch.rows, &BatchRow::wants_logits));
  const GraphShape shape{.rows = Padded(rows, weights), .outputs = Padded(outputs, weights), .first_layer_only = first_layer_only};
  auto graph = s.GraphFor(shape);
  if (!graph.ok()) return graph.status();
  s.step.Begin(batch, shape.rows, shape.outputs);
  auto* tokens = static_cast<int32_t*>((*graph)->tokens->data);
  auto* positions = static_cast<int32_t*>((*graph)->positions->data);
  for (uint32_t i = 0; i < shape.rows; ++i) {
    tokens[i] = i < rows ? batch.rows[i].token : 0;
    positions[i] = i < rows ? static_cast<int32_t>(batch.rows[i].position) : 0;
  }
  for (uint32_t i = 0; i < shape.outputs; ++i) {
    static_cast<int32_t*>((*graph)->output_rows->data)[i] = static_cast<int32_t>(s.step.OutputRow(i));
  }
  if (auto status = s.Compute(**graph); !status.ok()) return status;
  if (outputs == 0) return std::span<const float>();
  return std::span<const float>(static_cast<const float*>((*graph)->logits->data), size_t{outputs} * s.model->info().vocabulary);
}

#ifdef COFFERDAM_FAULTS
uint64_t Executor::check_cycles() const { return state_->step.check_cycles(); }
#endif

bool Executor::ReadWrongBytes(uint32_t table) const { return state_->step.ReadWrongBytes(table); }

absl::Status Executor::SelfTest() { return RunSelfTest(*this, state_->options.max_rows); }

}  // namespace cofferdam::model
