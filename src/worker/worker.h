// What prefill and decode workers share: model, pool, engine, the thread that owns them, and what they say of themselves.
#ifndef COFFERDAM_WORKER_WORKER_H_
#define COFFERDAM_WORKER_WORKER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/histogram.h"
#include "base/mutex.h"
#include "cofferdam.pb.h"
#include "engine/engine.h"
#include "fabric/shared_region.h"
#include "kv/pool.h"
#include "model/executor.h"
#include "model/model.h"
#include "worker/engine_loop.h"
#include "worker/ledger.h"
#ifdef COFFERDAM_FAULTS
#include "worker/injection.h"
#endif

namespace cofferdam::worker {

struct WorkerOptions {
  std::string role;  // "prefill" or "decode"
  std::string model_path;
  std::string address;                         // where gRPC listens: "unix:PATH" or loopback
  std::string fabric_address;                  // "shm:PATH", where others read pages; decode: empty when none do
  std::vector<std::string> prefill_addresses;  // decode only
  std::vector<std::string> pull_addresses;     // workers whose cached pages are pulled
  kv::Key cluster_secret{};
  uint64_t context_length = 0;  // 0: the model's own
  uint64_t kv_tokens = 0;       // 0: from the memory that is available
  bool shrink_context = false;
  uint32_t page_tokens = 64;
  int threads = 1;
  std::vector<int> cpus;
  uint32_t chunk_tokens = 512;
  uint32_t max_sequences = 256;
  uint32_t reserve_output_tokens = 128;             // decode: of an output, reserved at its start; 0: all
  uint32_t max_queue = 1024;                        // requests that wait for pages
  uint32_t local_prefill_tokens = 0;                // decode: prompts with a shorter rest are computed here; 0: one page
  size_t transfer_window_bytes = size_t{32} << 20;  // decode: of reads in flight, per peer
  engine::VerifyReads verify_reads{};
  bool verify_content = true;  // decode
  bool prefix_cache = true;
  uint64_t scrub_bytes_per_second = uint64_t{16} << 20;  // 0: nothing is scrubbed
  std::string tenure_log;                                // folder; empty: none is kept
  tenure::Retention tenure_retention{};
  bool repack = true;
  bool self_test = true;
  bool lifo_pages = false;  // reuse pages last-in first-out, which makes races likelier; for tests
  int heartbeat_ms = 1000;  // a stream that was silent for three of them is closed
#ifdef COFFERDAM_FAULTS
  engine::InjectionPlan injection;
#endif
};

// Everything below the servers. Built once; then the engine's thread owns engine and pool.
class WorkerCore {
 public:
  // Loads and measures. Errors: those of Model::Load; FailedPrecondition when the pool holds fewer tokens than the context (both
  // numbers in the message) or the self-test fails; ResourceExhausted (memory).
  static absl::StatusOr<std::unique_ptr<WorkerCore>> Create(const WorkerOptions& options);

  const WorkerOptions& options() const { return options_; }
  const model::Model& model() const { return *model_; }
  const kv::Layout& layout() const { return model_->layout(); }
  const std::string& model_hash() const { return model_hash_; }
  uint64_t boot_id() const { return boot_id_; }
  const fabric::SharedRegion& region() const { return *region_; }

  uint64_t pool_pages() const { return pages_; }
  // Thread-safe.
  const kv::PageIndex& cached_pages() const { return engine_->cache().index(); }

  // The engine's thread only, once the loop runs.
  engine::Engine& engine() { return *engine_; }
  kv::Pool& pool() { return *pool_; }
  // Checks that are made outside of the engine; added to the engine's own when they are published.
  kv::CheckCounts& checks() { return checks_; }
  Ledger& ledger() { return *ledger_; }
#ifdef COFFERDAM_FAULTS
  Injection& injection() { return *injection_; }
#endif

  // Publishes what Info answers with; the engine's thread calls it every turn. Cheap when nothing changed.
  void Publish(uint32_t waiting, std::vector<v1::Metric> role_metrics);
  // Thread-safe: the last published state.
  v1::WorkerInfo Info() const;

 private:
  WorkerCore() = default;
  absl::Status SizePool();
  absl::Status OpenLedger();
  void LogWhatWasMeasured() const;
  void AddMetrics(const kv::CheckCounts& checks, v1::WorkerInfo& info) const;
  // The checks that are on, by name.
  std::vector<std::string> ChecksThatAreOn() const;
  // Names the check that is configured and did not run; empty when all did.
  std::string WhichChecksAreSilent(const kv::CheckCounts& made) const;

  WorkerOptions options_;
  std::string model_hash_;
  uint64_t boot_id_ = 0;
  uint64_t context_tokens_ = 0;
  uint64_t pages_ = 0;
  std::shared_ptr<const model::Model> model_;
  std::unique_ptr<fabric::SharedRegion> region_;
  std::unique_ptr<kv::Pool> pool_;
  std::unique_ptr<model::Executor> executor_;
  std::unique_ptr<engine::Engine> engine_;
  kv::CheckCounts checks_;
  std::unique_ptr<Ledger> ledger_;
#ifdef COFFERDAM_FAULTS
  std::unique_ptr<Injection> injection_;
#endif

  mutable Mutex mutex_;
  v1::WorkerInfo info_ CD_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point published_ CD_GUARDED_BY(mutex_);
};

v1::Metric MakeMetric(std::string name, v1::Metric::Kind kind, double value, std::string help,
                      std::vector<std::pair<std::string, std::string>> labels = {});

v1::Metric MakeHistogram(std::string name, const SecondsHistogram& histogram, std::string help);

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_WORKER_H_
