#include "worker/worker.h"

#include <sodium.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/memory.h"
#include "text/model_hash.h"

namespace cofferdam::worker {
namespace {

// Of the memory that is available after the weights, the part that a pool takes when nothing else was asked for, and
// the number of full contexts beyond which more is not taken. `up` runs two workers on one machine.
constexpr double kMemoryShare = 0.3;
constexpr uint64_t kContexts = 8;
constexpr std::chrono::seconds kHungAfter{60};  // far beyond the longest step

uint64_t RandomId() {
  uint64_t id = 0;
  while (id == 0) randombytes_buf(&id, sizeof id);
  return id;
}

}  // namespace

v1::Metric MakeMetric(std::string name, v1::Metric::Kind kind, double value, std::string help,
                      std::vector<std::pair<std::string, std::string>> labels) {
  v1::Metric metric;
  metric.set_name(std::move(name));
  metric.set_kind(kind);
  metric.set_value(value);
  metric.set_help(std::move(help));
  for (auto& [key, text] : labels) {
    metric.add_label_names(std::move(key));
    metric.add_label_values(std::move(text));
  }
  return metric;
}

v1::Metric MakeHistogram(std::string name, const SecondsHistogram& histogram, std::string help) {
  v1::Metric metric = MakeMetric(std::move(name), v1::Metric::HISTOGRAM, histogram.sum_seconds(), std::move(help));
  for (const double bound : SecondsHistogram::kBounds) metric.add_bucket_bounds(bound);
  for (const uint64_t count : histogram.Cumulative()) metric.add_bucket_counts(count);
  return metric;
}

absl::Status WorkerCore::SizePool() {
  const uint64_t model_context = model_->info().context_length;
  context_tokens_ = options_.context_length == 0 ? model_context : options_.context_length;
  if (context_tokens_ > model_context) {
    return absl::FailedPreconditionError(
        absl::StrCat("--context-length ", context_tokens_, " is more than the model was made for (", model_context, " tokens)"));
  }
  uint64_t tokens = options_.kv_tokens;
  if (tokens == 0) {
    const auto share = static_cast<uint64_t>(kMemoryShare * static_cast<double>(AvailableMemoryBytes()));
    tokens = std::min<uint64_t>(share / layout().page_bytes() * layout().page_tokens(), kContexts * context_tokens_);
  }
  pages_ = std::min<uint64_t>(tokens / layout().page_tokens(), std::numeric_limits<uint32_t>::max());
  if (pages_ == 0) {
    return absl::FailedPreconditionError(absl::StrCat("the KV pool would hold ", tokens, " tokens, less than one page of ",
                                                      layout().page_tokens(), "; raise --kv-tokens or free memory"));
  }
  const uint64_t held = pages_ * layout().page_tokens();
  if (held >= context_tokens_) return absl::OkStatus();
  if (!options_.shrink_context) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the KV pool holds ", held, " tokens, but the context length is ", context_tokens_, ": ", context_tokens_ - held,
        " too few. Raise --kv-tokens, lower --context-length, or allow --shrink-context to serve ", held, " tokens"));
  }
  log::warn("the context shrinks from {} to {} tokens, which is what the KV pool holds", context_tokens_, held);
  context_tokens_ = held;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WorkerCore>> WorkerCore::Create(const WorkerOptions& options) {
  if (sodium_init() < 0) return absl::InternalError("libsodium could not be initialised");
  auto core = std::unique_ptr<WorkerCore>(new WorkerCore);
  core->options_ = options;
  core->boot_id_ = RandomId();
  auto hash = text::ModelHash(options.model_path);
  if (!hash.ok()) return hash.status();
  core->model_hash_ = *hash;
  auto model = model::Model::Load(
      {.path = options.model_path, .model_hash = *hash, .page_tokens = options.page_tokens, .repack = options.repack});
  if (!model.ok()) return model.status();
  core->model_ = *std::move(model);
  if (absl::Status status = core->SizePool(); !status.ok()) return status;

  const size_t bytes = core->pages_ * core->layout().page_bytes();
  const bool is_read_by_others = !options.fabric_address.empty();
  auto region = is_read_by_others ? fabric::SharedRegion::CreateShared(bytes) : fabric::SharedRegion::CreatePrivate(bytes);
  if (!region.ok()) return region.status();
  core->region_ = *std::move(region);
  if (is_read_by_others && !fabric::SharedMemoryMayBeHuge())
    log::info("the KV pool has no huge pages, since shmem_enabled is 'never' on this system; see docs/operations.md");
  core->pool_ = std::make_unique<kv::Pool>(core->layout(), core->region_->bytes(), core->boot_id_,
                                           options.lifo_pages ? kv::ReuseOrder::kLifo : kv::ReuseOrder::kFifo);
  auto executor =
      model::Executor::Create(core->model_, {.threads = options.threads, .cpus = options.cpus, .max_rows = options.chunk_tokens});
  if (!executor.ok()) return executor.status();
  core->executor_ = *std::move(executor);
  if (options.self_test) {
    if (absl::Status status = core->executor_->SelfTest(); !status.ok()) return status;
  }
  core->engine_ = std::make_unique<engine::Engine>(
      engine::EngineOptions{.role = absl::StrCat(options.role, " worker"),
                            .context_tokens = core->context_tokens_,
                            .chunk_tokens = options.chunk_tokens,
                            .max_sequences = options.max_sequences,
                            .first_output_tokens = options.reserve_output_tokens == 0 ? std::numeric_limits<uint32_t>::max()
                                                                                      : options.reserve_output_tokens,
                            .verify_reads = options.verify_reads,
                            .verify_content = options.verify_content,
                            .prefix_cache = options.prefix_cache,
                            .sample_seed = RandomId()},
      *core->executor_, *core->pool_);
#ifdef COFFERDAM_FAULTS
  core->injection_ = std::make_unique<Injection>(options.injection, options.role, *core->engine_);
#endif
  if (absl::Status status = core->OpenLedger(); !status.ok()) return status;
  core->LogWhatWasMeasured();
  core->Publish(0, {});
  return core;
}

absl::Status WorkerCore::OpenLedger() {
  if (options_.tenure_log.empty()) {
    log::warn("no tenure log is kept: after an incident nothing will say whom it could affect; see --tenure-log");
    ledger_ = std::make_unique<Ledger>(nullptr);
    return absl::OkStatus();
  }
  auto log = tenure::Log::Open({.folder = options_.tenure_log,
                                .role = options_.role == "prefill" ? tenure::Role::kPrefill : tenure::Role::kDecode,
                                .boot = tenure::BootId(boot_id_),
                                .pages = pages_,
                                .page_tokens = layout().page_tokens(),
                                .version = COFFERDAM_VERSION,
                                .retention = options_.tenure_retention});
  if (!log.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("the tenure log cannot be kept: ", std::string(log.status().message()),
                                                      ". Name another folder with --tenure-log, or --tenure-log off"));
  }
  ledger_ = std::make_unique<Ledger>(*std::move(log));
  return absl::OkStatus();
}

void WorkerCore::LogWhatWasMeasured() const {
  const model::ModelInfo& info = model_->info();
  log::info("model {}: {}, {} layers, {} MiB of weights mapped, {} MiB repacked in private memory", options_.model_path,
            info.architecture, info.layers, info.weight_bytes >> 20, info.repacked_bytes >> 20);
  log::info("KV pool: {} tokens in {} pages of {} tokens ({} MiB); context {} tokens", pages_ * layout().page_tokens(), pages_,
            layout().page_tokens(), (pages_ * layout().page_bytes()) >> 20, context_tokens_);
  if (!options_.tenure_log.empty()) log::info("tenure log: {}", options_.tenure_log);
  log::info("layout {}: {}", kv::Hex(layout().id()), layout().Describe());
  log::info("checks: {}{}", absl::StrJoin(ChecksThatAreOn(), ", "),
            options_.self_test ? "; the self-test of non-interference passed" : "; the self-test was switched off");
}

std::vector<std::string> WorkerCore::ChecksThatAreOn() const {
  std::vector<std::string> checks{"tags", "seals", "zeroing"};
  if (options_.verify_reads.mode != engine::VerifyReads::Mode::kTags)
    checks.push_back(absl::StrCat("payload=", engine::ToString(options_.verify_reads)));
  if (options_.verify_content && (options_.role == "decode" || !options_.pull_addresses.empty())) checks.emplace_back("content");
  if (options_.scrub_bytes_per_second > 0) checks.push_back(absl::StrCat("scrub=", options_.scrub_bytes_per_second, "B/s"));
  if (options_.self_test) checks.emplace_back("non_interference");
  return checks;
}

std::string WorkerCore::WhichChecksAreSilent(const kv::CheckCounts& made) const {
  const engine::EngineCounters& done = engine_->counters();
  const std::tuple<kv::CheckKind, uint64_t> due[] = {{kv::CheckKind::kTags, done.tag_checks_due},
                                                     {kv::CheckKind::kRows, done.row_checks_due},
                                                     {kv::CheckKind::kPayload, done.payload_checks_due},
                                                     {kv::CheckKind::kSeal, done.pages_adopted},
                                                     {kv::CheckKind::kContent, done.content_checks_due}};
  std::string silent;
  for (const auto& [kind, at_least] : due) {
    if (made[kind].made >= at_least) continue;
    absl::StrAppend(&silent, silent.empty() ? "" : "; ", "the check of ", std::string(kv::ToString(kind)),
                    " is configured and does not run: ", made[kind].made, " made, ", at_least, " due");
  }
  return silent;
}

void WorkerCore::AddMetrics(const kv::CheckCounts& checks, v1::WorkerInfo& info) const {
  using v1::Metric;
  const kv::PoolCounts& counts = pool_->counts();
  const engine::EngineCounters& done = engine_->counters();
  auto add = [&](const char* name, Metric::Kind kind, uint64_t value, const char* help) {
    *info.add_metrics() = MakeMetric(name, kind, static_cast<double>(value), help);
  };
  for (size_t i = 0; i < kv::kPageStates; ++i) {
    *info.add_metrics() = MakeMetric("kv_pages", Metric::GAUGE, static_cast<double>(counts.by_state[i]), "KV pages by state",
                                     {{"state", std::string(kv::ToString(static_cast<kv::PageState>(i)))}});
  }
  add("kv_pages_total", Metric::GAUGE, counts.total, "KV pages of the pool");
  add("kv_page_reservations_total", Metric::COUNTER, counts.reserved_total, "KV pages ever reserved");
  add("kv_page_retirements_total", Metric::COUNTER, counts.retired_total, "KV pages ever retired");
  add("kv_zeroed_bytes_total", Metric::COUNTER, counts.zeroed_bytes, "Bytes zeroed before reuse");
  *info.add_metrics() = MakeHistogram("deferred_release_seconds", pool_->deferred_release(),
                                      "From a page's release to its return to the free list, zeroed");
  add("engine_steps_total", Metric::COUNTER, done.steps, "Steps of the engine");
  add("engine_rows_total", Metric::COUNTER, done.rows, "Rows computed");
  add("prompt_tokens_total", Metric::COUNTER, done.prefill_tokens, "Prompt tokens computed");
  add("generation_tokens_total", Metric::COUNTER, done.generated_tokens, "Tokens generated");
  for (const kv::CheckKind kind : kv::kAllCheckKinds) {
    const std::string name(kv::ToString(kind));
    *info.add_metrics() = MakeMetric("checks_total", Metric::COUNTER, static_cast<double>(checks[kind].made),
                                     "Integrity checks made, in pages, by kind", {{"kind", name}});
    *info.add_metrics() = MakeMetric("checks_failed_total", Metric::COUNTER, static_cast<double>(checks[kind].failed),
                                     "Integrity checks that failed, in pages, by kind", {{"kind", name}});
  }
  *info.add_metrics() = MakeMetric("check_seconds_total", Metric::COUNTER, std::chrono::duration<double>(done.check_time).count(),
                                   "Time of the engine's thread in checks; bytes checked while attention reads them come on top");
  add("kv_pages_adopted_total", Metric::COUNTER, done.pages_adopted, "Pages adopted from a peer");
  add("kv_pages_grown_total", Metric::COUNTER, done.pages_grown, "Pages that sequences took after their start");
  add("kv_tokens_copied_total", Metric::COUNTER, done.tokens_copied,
      "Tokens copied from pages that other answers to the prompt fill");
  add("growth_stalls_total", Metric::COUNTER, done.stalls, "Steps that a sequence sat out for want of a page");
  add("preemptions_total", Metric::COUNTER, done.preemptions, "Sequences that gave their pages back to older ones, to go on later");
  add("preempted_tokens_total", Metric::COUNTER, done.preempted_tokens, "Tokens of those that are covered a second time");
  add("kv_pages_sealed_total", Metric::COUNTER, done.pages_sealed, "Pages sealed");
  const kv::PrefixCacheCounters& cache = engine_->cache().counters();
  add("prefix_cache_lookup_tokens_total", Metric::COUNTER, cache.looked_up_tokens,
      "Prompt tokens in whole pages that were looked up in the prefix cache");
  add("prefix_cache_hit_tokens_total", Metric::COUNTER, cache.hit_tokens, "Prompt tokens that were found there");
  add("prefix_cache_inserted_pages_total", Metric::COUNTER, cache.inserted_pages, "Pages that entered the prefix cache");
  add("prefix_cache_evicted_pages_total", Metric::COUNTER, cache.evicted_pages, "Pages evicted to make room");
  add("prefix_cache_dropped_pages_total", Metric::COUNTER, cache.dropped_pages,
      "Pages that are not used again since a check failed, of them or of the worker that sent them");
  for (const auto& [reason, count] : ledger_->refused()) {
    *info.add_metrics() = MakeMetric("requests_refused_total", Metric::COUNTER, static_cast<double>(count),
                                     "Requests refused before they owned a page, by the code of their error", {{"reason", reason}});
  }
  add("incidents_total", Metric::COUNTER, ledger_->incidents(), "Pages that failed a check, with a record of it");
  add("tenure_log_dropped_total", Metric::COUNTER, ledger_->dropped(), "Records that are missing in the tenure log");
  add("tenure_log_errors_total", Metric::COUNTER, ledger_->errors(), "Failed writes of the tenure log");
}

void WorkerCore::Publish(uint32_t waiting, std::vector<v1::Metric> role_metrics) {
  using v1::Metric;
  const kv::PoolCounts& counts = pool_->counts();
  const engine::EngineCounters& done = engine_->counters();
  v1::WorkerInfo info;
  info.set_role(options_.role);
  info.set_version(COFFERDAM_VERSION);
  info.set_boot_id(boot_id_);
  info.mutable_layout()->set_layout_id(layout().id().data(), layout().id().size());
  info.mutable_layout()->set_description(layout().Describe());
  info.set_kv_tokens(counts.usable() * layout().page_tokens());
  info.set_context_tokens(engine_->context_tokens());
  info.set_page_tokens(layout().page_tokens());
  for (std::string& check : ChecksThatAreOn()) info.add_checks(std::move(check));
  // Lost pages may make the context shorter than what was promised at start: then this worker is not ready.
  info.set_ready(engine_->context_tokens() >= context_tokens_);
  if (!info.ready()) info.set_not_ready_reason("quarantined pages leave less than the context");
  kv::CheckCounts checks = done.checks;
  checks += checks_;
  if (std::string silent = WhichChecksAreSilent(checks); !silent.empty()) {
    info.set_ready(false);
    info.set_not_ready_reason(std::move(silent));
  }
  info.set_steps(done.steps);
  info.set_running(static_cast<uint32_t>(engine_->sequences()));
  info.set_waiting(waiting);
  info.set_fabric_address(options_.fabric_address);
  info.mutable_pull_from()->Assign(options_.pull_addresses.begin(), options_.pull_addresses.end());
  info.set_model_hash(model_hash_);
  AddMetrics(checks, info);
#ifdef COFFERDAM_FAULTS
  injection_->AddMetrics(info);
#endif
  for (Metric& metric : role_metrics) *info.add_metrics() = std::move(metric);
  MutexLock lock(mutex_);
  published_ = std::chrono::steady_clock::now();
  info_ = std::move(info);
}

v1::WorkerInfo WorkerCore::Info() const {
  MutexLock lock(mutex_);
  v1::WorkerInfo info = info_;
  const auto age = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - published_);
  if (info.ready() && age > kHungAfter) {
    info.set_ready(false);
    info.set_not_ready_reason(absl::StrCat("its engine has done nothing for ", age.count(), " s"));
  }
  return info;
}

}  // namespace cofferdam::worker
