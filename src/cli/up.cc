#include "cli/up.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "cli/embedded_model.h"
#include "cli/supervisor.h"
#include "gateway/key_file.h"
#include "gateway/random_hex.h"

namespace cofferdam::cli {
namespace {

constexpr size_t kSecretBytes = 32;

// A folder for sockets that only this user can enter, gone with the object.
class RunFolder {
 public:
  RunFolder() {
    const char* base = std::getenv("XDG_RUNTIME_DIR");
    std::string pattern = absl::StrCat(base != nullptr && *base != '\0' ? base : "/tmp", "/cofferdam-XXXXXX");
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~RunFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

bool IsColocated(const Flags& flags) { return flags.mode == "colocated"; }

std::vector<int> AllowedCores(int threads) {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cores.push_back(cpu);
    }
  }
  if (cores.empty()) cores.push_back(0);
  if (threads > 0 && static_cast<size_t>(threads) < cores.size()) cores.resize(static_cast<size_t>(threads));
  return cores;
}

void AddArgumentsOfDecode(const Flags& flags, const std::string& folder, std::vector<std::string>& arguments) {
  arguments.insert(arguments.end(), {"--reserve-output-tokens", absl::StrCat(flags.reserve_output_tokens)});
  // Without a prefill worker it computes every prompt itself: that is the whole of the colocated mode.
  if (IsColocated(flags)) return;
  arguments.insert(arguments.end(), {"--prefill", absl::StrCat("unix:", folder, "/prefill.sock"), "--local-prefill-tokens",
                                     absl::StrCat(flags.local_prefill_tokens), "--verify-content", flags.verify_content,
                                     "--transfer-window-bytes", absl::StrCat(flags.transfer_window_bytes)});
}

std::vector<std::string> WorkerArguments(const std::string& role, const Flags& flags, const std::string& folder,
                                         const std::string& model, const std::vector<int>& cores) {
  const uint64_t own = role == "prefill" ? flags.prefill_kv_tokens : flags.decode_kv_tokens;
  std::vector<std::string> arguments{role,
                                     "--model",
                                     model,
                                     "--listen",
                                     absl::StrCat("unix:", folder, "/", role, ".sock"),
                                     "--log-level",
                                     flags.log_level,
                                     "--page-size",
                                     absl::StrCat(flags.page_size),
                                     "--cpus",
                                     absl::StrJoin(cores, ","),
                                     "--context-length",
                                     absl::StrCat(flags.context_length),
                                     "--kv-tokens",
                                     absl::StrCat(own != 0 ? own : flags.kv_tokens),
                                     "--chunk-tokens",
                                     absl::StrCat(flags.chunk_tokens),
                                     "--max-num-seqs",
                                     absl::StrCat(flags.max_num_seqs),
                                     "--max-queue",
                                     absl::StrCat(flags.max_queue),
                                     "--verify-reads",
                                     flags.verify_reads,
                                     "--scrub-bytes-per-second",
                                     absl::StrCat(flags.scrub_bytes_per_second),
                                     "--heartbeat-ms",
                                     absl::StrCat(flags.heartbeat_ms)};
  if (flags.log_json) arguments.push_back("--log-json");
  if (flags.shrink_context) arguments.push_back("--shrink-context");
  if (flags.no_repack) arguments.push_back("--no-repack");
  if (!flags.tenure_log.empty()) arguments.insert(arguments.end(), {"--tenure-log", flags.tenure_log});
  arguments.insert(arguments.end(), {"--tenure-log-days", absl::StrCat(flags.tenure_log_days), "--tenure-log-files",
                                     absl::StrCat(flags.tenure_log_files)});
#ifdef COFFERDAM_FAULTS
  for (const std::string& fault : flags.faults) arguments.insert(arguments.end(), {"--fault", fault});
  for (const std::string& rate : flags.inject) arguments.insert(arguments.end(), {"--inject", rate});
  arguments.insert(arguments.end(),
                   {"--inject-seed", absl::StrCat(flags.inject_seed), "--inject-limit", absl::StrCat(flags.inject_limit)});
#endif
  if (flags.no_prefix_cache) arguments.push_back("--no-prefix-cache");
  if (flags.lifo_pages) arguments.push_back("--lifo-pages");
  if (role == "prefill") {
    arguments.insert(arguments.end(), {"--fabric", absl::StrCat("shm:", folder, "/fabric.sock")});
    if (flags.pull_answers) arguments.insert(arguments.end(), {"--pull-from", absl::StrCat("unix:", folder, "/decode.sock")});
  } else {
    AddArgumentsOfDecode(flags, folder, arguments);
    if (flags.pull_answers) arguments.insert(arguments.end(), {"--fabric", absl::StrCat("shm:", folder, "/decode-fabric.sock")});
  }
  return arguments;
}

// Keys go through a file of our own folder, never through an argument list that others can read.
absl::StatusOr<std::vector<std::string>> GatewayArguments(const Flags& flags, const std::string& folder, const std::string& model) {
  std::vector<std::string> arguments{"gateway",
                                     "--model",
                                     model,
                                     "--host",
                                     flags.host,
                                     "--port",
                                     absl::StrCat(flags.port),
                                     "--log-level",
                                     flags.log_level,
                                     "--decode",
                                     absl::StrCat("unix:", folder, "/decode.sock"),
                                     "--on-disconnect",
                                     flags.on_disconnect,
                                     "--max-connections",
                                     absl::StrCat(flags.max_connections),
                                     "--max-body-bytes",
                                     absl::StrCat(flags.max_body_bytes)};
  if (!IsColocated(flags)) arguments.insert(arguments.end(), {"--prefill", absl::StrCat("unix:", folder, "/prefill.sock")});
  if (flags.log_json) arguments.push_back("--log-json");
  if (flags.hide_cached_tokens) arguments.push_back("--hide-cached-tokens");
#ifdef COFFERDAM_FAULTS
  for (const std::string& fault : flags.faults) arguments.insert(arguments.end(), {"--fault", fault});
#endif
  for (const std::string& name : flags.served_model_names) arguments.insert(arguments.end(), {"--served-model-name", name});
  auto options = GatewayOptionsOf(flags);
  if (!options.ok()) return options.status();
  // What the gateway would refuse is refused before anything is started.
  if (absl::Status status = CheckAccess(*options); !status.ok()) return status;
  if (!flags.keys.empty()) {
    if (const auto records = gateway::ReadKeyFile(flags.keys); !records.ok()) return records.status();
    arguments.insert(arguments.end(), {"--keys", flags.keys});
  }
  if (flags.allow_anyone) arguments.push_back("--allow-anyone");
  if (!options->api_keys.empty()) {
    const std::string path = absl::StrCat(folder, "/api-keys");
    FILE* file = fopen(path.c_str(), "wx");  // the folder is ours alone
    if (file == nullptr) return absl::InternalError(absl::StrCat(path, " cannot be written"));
    for (const std::string& key : options->api_keys) std::fprintf(file, "%s\n", key.c_str());
    std::fclose(file);
    arguments.insert(arguments.end(), {"--api-key-file", path});
  }
  return arguments;
}

struct Worker {
  std::string role;
  std::vector<int> cores;
};

std::vector<Worker> WorkersOf(const Flags& flags) {
  const std::vector<int> cores = AllowedCores(flags.threads);
  if (IsColocated(flags)) {
    log::info("cores {} for one worker that computes prompts and answers", absl::StrJoin(cores, ","));
    return {{.role = "decode", .cores = cores}};
  }
  // Each role has cores of its own: shared ones would starve both (spinning barriers). One core is shared for want of two.
  const size_t half = cores.size() / 2;
  const std::vector<int> prefill(cores.begin(), cores.begin() + static_cast<ptrdiff_t>(std::max<size_t>(1, half)));
  const std::vector<int> decode(cores.begin() + static_cast<ptrdiff_t>(half), cores.end());
  log::info("cores {} for prefill, {} for decode", absl::StrJoin(prefill, ","), absl::StrJoin(decode, ","));
  return {{.role = "prefill", .cores = prefill}, {.role = "decode", .cores = decode}};
}

}  // namespace

int RunUp(const Flags& flags) {
  if (IsColocated(flags) && flags.prefill_kv_tokens != 0) {
    log::error("--prefill-kv-tokens sizes the pool of a prefill worker, and with --mode=colocated there is none: use --kv-tokens");
    return kExitRefused;
  }
  if (IsColocated(flags) && flags.pull_answers) {
    log::error("--pull-answers is for a prefill worker, and with --mode=colocated there is none");
    return kExitRefused;
  }
  std::string model = flags.model;
  if (model.empty()) {
    auto embedded = EmbeddedModelFile();
    if (!embedded.ok()) {
      log::error("{}", std::string(embedded.status().message()));
      return 1;
    }
    model = *embedded;
    log::info("using the embedded model; --model FILE serves another one");
  }
  const RunFolder folder;
  if (folder.path().empty()) {
    log::error("no folder for sockets can be made under XDG_RUNTIME_DIR or /tmp");
    return 1;
  }
  auto gateway = GatewayArguments(flags, folder.path(), model);
  if (!gateway.ok()) {
    log::error("{}", std::string(gateway.status().message()));
    return kExitRefused;
  }
  const std::string secret = absl::StrCat("COFFERDAM_CLUSTER_SECRET=", gateway::RandomHex(kSecretBytes));
  std::vector<ChildSpec> children;
  for (const Worker& worker : WorkersOf(flags)) {
    children.push_back({.name = worker.role,
                        .arguments = WorkerArguments(worker.role, flags, folder.path(), model, worker.cores),
                        .environment = {secret}});
  }
  children.push_back({.name = "gateway", .arguments = *std::move(gateway), .environment = {}});
  return Supervisor(std::move(children)).Run();
}

}  // namespace cofferdam::cli
