#include "cli/options.h"

#include <sodium.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/address.h"
#include "base/faults.h"
#include "cli/embedded_model.h"
#include "tenure/folder.h"

namespace cofferdam::cli {
namespace {

constexpr size_t kMinSecretBytes = 32, kMaxSecretBytes = 4096;
constexpr unsigned kMaxThreads = 256;  // what the executor takes
constexpr size_t kMaxKeyFileBytes = size_t{1} << 20;

void AddWorkerOptions(CLI::App& app, Flags& flags) {
  app.add_option("--context-length,--max-model-len", flags.context_length,
                 "Longest sequence to serve, in tokens (default: the model's own)");
  app.add_option("--kv-tokens", flags.kv_tokens,
                 "Tokens that the KV pool holds (default: from the memory that is available, at most 8 contexts)");
  app.add_flag("--shrink-context", flags.shrink_context,
               "Serve a shorter context when the KV pool is smaller than the context, instead of refusing to start");
  app.add_option("--page-size", flags.page_size, "Tokens in a KV page: a multiple of 16 from 16 to 128")->capture_default_str();
  app.add_option("--threads,-t", flags.threads,
                 "Compute threads; with `up` of all workers together (default: the cores of this process)");
  app.add_option("--chunk-tokens", flags.chunk_tokens, "Tokens of prompts and sequences computed in one step, at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 8192));
  app.add_option("--max-num-seqs", flags.max_num_seqs, "Sequences that run at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--max-queue", flags.max_queue, "Requests that wait for pages; over it: 429")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--heartbeat-ms", flags.heartbeat_ms, "A stream between workers that was silent for three of these is closed")
      ->capture_default_str()
      ->check(CLI::Range(50, 60000));
  app.add_option("--tenure-log", flags.tenure_log,
                 "Folder of the log of who owned which page, for `cofferdam incidents` (default: $XDG_STATE_HOME/cofferdam, else "
                 "~/.local/state/cofferdam); 'off': none is kept");
  app.add_option("--tenure-log-days", flags.tenure_log_days, "Older files of the tenure log are removed")
      ->capture_default_str()
      ->check(CLI::Range(1, 36500));
  app.add_option("--tenure-log-files", flags.tenure_log_files, "Files of 16 MiB that each role keeps of the tenure log, at most")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  app.add_option(
         "--verify-reads", flags.verify_reads,
         "What is checked of the pages that a step reads: 'tags' at both ends; 'sampled:N': and the bytes of N sealed pages a "
         "step, in turn; 'full': and the bytes of every sealed page. There is no off")
      ->capture_default_str();
  app.add_option("--scrub-bytes-per-second", flags.scrub_bytes_per_second,
                 "How fast sealed pages are checked again while they lie in the pool (0: not at all)")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 40));
#ifdef COFFERDAM_FAULTS
  app.add_option("--inject", flags.inject,
                 "KIND:RATE: spoil pages at random, at this rate of all steps or reads (src/kv/corruption.h); may be given several "
                 "times");
  app.add_option("--inject-seed", flags.inject_seed, "Seed of what is injected");
  app.add_option("--inject-limit", flags.inject_limit, "Faults that each worker injects, at most");
#endif
  app.add_flag("--no-repack", flags.no_repack, "Use the weights as they lie in the file, without a faster private copy");
  app.add_flag("--no-prefix-cache", flags.no_prefix_cache,
               "Let every page go with its request, instead of keeping sealed ones for later requests of the same tenant");
  app.add_flag("--lifo-pages", flags.lifo_pages, "Reuse pages last-in first-out (for tests: races become likelier)");
}

void AddDecodeOptions(CLI::App& app, Flags& flags) {
  app.add_option("--local-prefill-tokens", flags.local_prefill_tokens,
                 "Shorter prompts are computed by decode itself (default: one page)");
  app.add_option("--reserve-output-tokens", flags.reserve_output_tokens,
                 "Of an answer, so much is reserved when it starts; the rest is taken page by page, and a younger answer gives its "
                 "pages back and is resumed later when none is left. 0: all is reserved")
      ->capture_default_str();
  app.add_option(
         "--verify-content", flags.verify_content,
         "'on': layer 0's K and V of a token of every page that arrives are computed again and compared, now and then those "
         "of a whole page; or 'off'")
      ->capture_default_str()
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--transfer-window-bytes", flags.transfer_window_bytes, "Bytes of page reads in flight, per prefill worker")
      ->capture_default_str();
}

void AddGatewayOptions(CLI::App& app, Flags& flags) {
  app.add_option("--host", flags.host, "Address to listen on")->capture_default_str();
  app.add_option("--port,-p", flags.port, "HTTP port")->capture_default_str();
  app.add_option("--served-model-name,--alias", flags.served_model_names,
                 "Names that requests may use for the model (default: the file's stem)");
  app.add_option(
      "--keys", flags.keys,
      "File of API keys with their tenants and limits, made by `cofferdam keys add`; read again when it changes. Without "
      "any keys the server listens on this machine alone");
  app.add_option("--api-key", flags.api_keys,
                 "Key that clients must send; may be given several times, each key is a tenant of its own (default: open). Visible "
                 "to other users of this machine: prefer --api-key-file");
  app.add_option("--api-key-file", flags.api_key_file, "File with one API key a line; lines that begin with # are comments");
  app.add_flag("--allow-anyone", flags.allow_anyone, "Listen without keys even where others reach: whoever does may use it");
  app.add_flag("--hide-cached-tokens", flags.hide_cached_tokens,
               "Do not tell clients how many tokens of their prompt were found in the prefix cache");
  app.add_option("--on-disconnect", flags.on_disconnect,
                 "When a client goes away: 'cancel' its request, or 'finish-transfer' and stop at the first token")
      ->capture_default_str()
      ->check(CLI::IsMember({"cancel", "finish-transfer"}));
  app.add_option("--max-connections", flags.max_connections, "Open client connections")->capture_default_str();
  app.add_option("--max-body-bytes", flags.max_body_bytes, "Largest request body")->capture_default_str();
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t limit) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes(limit + 1, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (file.gcount() == 0 || file.bad()) return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read or is empty"));
  bytes.resize(static_cast<size_t>(file.gcount()));
  if (bytes.size() > limit) return absl::InvalidArgumentError(absl::StrCat(path, " is larger than ", limit, " bytes"));
  return bytes;
}

absl::StatusOr<kv::Key> ClusterSecret(const Flags& flags) {
  std::string secret;
  if (!flags.cluster_secret_file.empty()) {
    auto bytes = ReadSmallFile(flags.cluster_secret_file, kMaxSecretBytes);
    if (!bytes.ok()) return bytes.status();
    secret = *std::move(bytes);
  } else if (char* value = std::getenv("COFFERDAM_CLUSTER_SECRET"); value != nullptr) {
    secret = value;
    sodium_memzero(value, secret.size());  // nor does it stay in this process's environment
  }
  absl::StripAsciiWhitespace(&secret);  // a file ends with a newline, a variable does not
  if (secret.size() < kMinSecretBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefill and decode workers share a secret of at least ", kMinSecretBytes,
                     " bytes. Make one (head -c 32 /dev/urandom | base64 > secret) and give both --cluster-secret-file secret"));
  }
  kv::Key key;
  crypto_generichash(key.data(), key.size(), reinterpret_cast<const uint8_t*>(secret.data()), secret.size(), nullptr, 0);
  sodium_memzero(secret.data(), secret.size());
  return key;
}

absl::StatusOr<std::string> ModelPath(const Flags& flags) { return flags.model.empty() ? EmbeddedModelFile() : flags.model; }

int DefaultThreads() { return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, kMaxThreads)); }

}  // namespace

void AddOptions(const std::string& command, CLI::App& app, Flags& flags) {
  app.add_option("--config", flags.config, "TOML file with options of the same names; the command line wins");
  app.add_option("--log-level", flags.log_level, "debug, info, warn or error")
      ->capture_default_str()
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}));
  app.add_flag("--log-json", flags.log_json, "One JSON object a line");
#ifdef COFFERDAM_FAULTS
  app.add_option("--fault", flags.faults, "Re-create a wrong behaviour by name (src/base/faults.h); may be given several times");
#endif
  app.add_option("--model,-m", flags.model, "GGUF file (default: the small embedded model)");
  if (command == "gateway" || command == "up") AddGatewayOptions(app, flags);
  if (command != "gateway") AddWorkerOptions(app, flags);
  if (command == "decode" || command == "up") AddDecodeOptions(app, flags);
  if (command == "prefill" || command == "decode") {
    app.add_option("--listen", flags.listen, "gRPC address: unix:PATH or 127.0.0.1:PORT (required)");
    app.add_option("--cluster-secret-file", flags.cluster_secret_file,
                   "Secret that prefill and decode workers share (or set COFFERDAM_CLUSTER_SECRET)");
    app.add_option("--cpus", flags.cpus, "Cores to pin the compute threads to, as in 0,1 (default: not pinned)")->delimiter(',');
  }
  if (command == "prefill") app.add_option("--fabric", flags.fabric, "Where decode workers fetch pages: shm:PATH (required)");
  if (command == "decode") {
    app.add_option("--fabric", flags.fabric,
                   "Where other workers fetch pages of this one's prefix cache: shm:PATH (default: nowhere)");
  }
  if (command == "prefill" || command == "decode") {
    app.add_option("--pull-from", flags.pull_from,
                   "gRPC address of a worker with --fabric whose cached pages are fetched instead of computed again; may be given "
                   "several times");
  }
  if (command == "decode" || command == "gateway") {
    auto* prefill = app.add_option("--prefill", flags.prefill, "gRPC address of a prefill worker; may be given several times");
    if (command == "gateway") {
      prefill->description("gRPC address of a prefill worker, watched for /health; may be given several times");
      app.add_option("--decode", flags.decode, "gRPC address of a decode worker; may be given several times (required)");
    }
  }
  if (command == "up") {
    app.add_option("--mode", flags.mode,
                   "'disaggregated': a prefill and a decode worker, each with cores of its own; or 'colocated': one worker that "
                   "computes prompts and answers, on all cores")
        ->capture_default_str()
        ->check(CLI::IsMember({"disaggregated", "colocated"}));
    app.add_flag(
        "--pull-answers", flags.pull_answers,
        "The prefill worker fetches pages of earlier answers from decode instead of computing them again. Decode's pool is "
        "then shared memory: see docs/operations.md on its huge pages");
    app.add_option("--prefill-kv-tokens", flags.prefill_kv_tokens, "Like --kv-tokens, for the prefill worker alone");
    app.add_option("--decode-kv-tokens", flags.decode_kv_tokens, "Like --kv-tokens, for the decode worker alone");
  }
}

void ApplyConfigFile(const std::string& path, CLI::App& app) {
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_file(path)) {
    CLI::Option* option = item.parents.empty() ? app.get_option_no_throw("--" + item.name) : nullptr;
    if (option == nullptr || item.name == "config" || item.name == "help") {
      throw CLI::ConfigError(absl::StrCat(path, ": '", item.fullname(), "' is not an option of `cofferdam ", app.get_name(),
                                          "`; see cofferdam ", app.get_name(), " --help"));
    }
    if (option->count() > 0) continue;  // on the command line
    const bool flag = option->get_expected_min() == 0;
    if (flag && (item.inputs.size() != 1 || (item.inputs[0] != "true" && item.inputs[0] != "false"))) {
      throw CLI::ConfigError(absl::StrCat(path, ": '", item.name, "' must be true or false"));
    }
    option->add_result(item.inputs);
    option->run_callback();
  }
}

namespace {

absl::Status TurnFaultsOn([[maybe_unused]] const Flags& flags) {
#ifdef COFFERDAM_FAULTS
  for (const std::string& name : flags.faults) {
    const std::optional<Fault> fault = FaultNamed(name);
    if (!fault.has_value()) return absl::InvalidArgumentError(absl::StrCat("there is no fault point '", name, "'"));
    SetFault(*fault, true);
  }
#endif
  return absl::OkStatus();
}

#ifdef COFFERDAM_FAULTS
absl::StatusOr<engine::InjectionPlan> InjectionPlanOf(const Flags& flags) {
  engine::InjectionPlan plan{.seed = flags.inject_seed, .limit = flags.inject_limit};
  for (const std::string& text : flags.inject) {
    if (absl::Status status = engine::AddRate(text, plan); !status.ok()) return status;
  }
  return plan;
}
#endif

absl::Status CheckAddresses(const Flags& flags) {
  if (flags.listen.empty()) return absl::InvalidArgumentError("--listen is required: unix:PATH or 127.0.0.1:PORT");
  if (absl::Status status = CheckLocalAddress(flags.listen); !status.ok()) return status;
  for (const auto* addresses : {&flags.prefill, &flags.pull_from}) {
    for (const std::string& address : *addresses) {
      if (absl::Status status = CheckLocalAddress(address); !status.ok()) return status;
    }
  }
  if (std::ranges::count(flags.pull_from, flags.listen) > 0)
    return absl::InvalidArgumentError(absl::StrCat("--pull-from ", flags.listen, " is this worker itself"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<worker::WorkerOptions> WorkerOptionsOf(const std::string& role, const Flags& flags) {
  worker::WorkerOptions options;
  options.role = role;
  if (absl::Status status = CheckAddresses(flags); !status.ok()) return status;
  if (role == "prefill" && flags.fabric.empty()) {
    return absl::InvalidArgumentError("--fabric is required: shm:PATH, where decode workers fetch pages");
  }
  auto model = ModelPath(flags);
  if (!model.ok()) return model.status();
  if (absl::Status status = TurnFaultsOn(flags); !status.ok()) return status;
  auto secret = ClusterSecret(flags);
  if (!secret.ok()) return secret.status();
  options.model_path = *model;
  options.cluster_secret = *secret;
  options.address = flags.listen;
  options.fabric_address = flags.fabric;
  options.pull_addresses = flags.pull_from;
  options.prefill_addresses = flags.prefill;
  options.context_length = flags.context_length;
  options.kv_tokens = flags.kv_tokens;
  options.shrink_context = flags.shrink_context;
  options.page_tokens = flags.page_size;
  options.threads = flags.threads > 0 ? flags.threads : flags.cpus.empty() ? DefaultThreads() : static_cast<int>(flags.cpus.size());
  options.cpus = flags.cpus;
  options.chunk_tokens = flags.chunk_tokens;
  // Each needs a row of every step: with fewer rows than sequences the youngest would wait for ever.
  options.max_sequences = std::min(flags.max_num_seqs, flags.chunk_tokens);
  options.max_queue = flags.max_queue;
  options.local_prefill_tokens = flags.local_prefill_tokens;
  options.reserve_output_tokens = flags.reserve_output_tokens;
  options.transfer_window_bytes = flags.transfer_window_bytes;
  options.heartbeat_ms = flags.heartbeat_ms;
  if (flags.tenure_log != "off") {
    // Without a home there is no default, and none is kept; the worker says so.
    options.tenure_log = flags.tenure_log.empty() ? tenure::DefaultFolder().value_or("") : flags.tenure_log;
  }
  options.tenure_retention = {.max_files = flags.tenure_log_files, .max_age = std::chrono::days(flags.tenure_log_days)};
  auto verify_reads = engine::ParseVerifyReads(flags.verify_reads);
  if (!verify_reads.ok()) return verify_reads.status();
  options.verify_reads = *verify_reads;
  options.verify_content = flags.verify_content == "on";
  options.prefix_cache = !flags.no_prefix_cache;
  options.scrub_bytes_per_second = flags.scrub_bytes_per_second;
#ifdef COFFERDAM_FAULTS
  auto injection = InjectionPlanOf(flags);
  if (!injection.ok()) return injection.status();
  options.injection = *injection;
#endif
  options.repack = !flags.no_repack;
  options.lifo_pages = flags.lifo_pages;
  return options;
}

absl::StatusOr<gateway::GatewayOptions> GatewayOptionsOf(const Flags& flags) {
  gateway::GatewayOptions options;
  auto model = ModelPath(flags);
  if (!model.ok()) return model.status();
  if (absl::Status status = TurnFaultsOn(flags); !status.ok()) return status;
  options.model_path = *model;
  options.host = flags.host;
  options.port = flags.port;
  options.served_model_names = flags.served_model_names;
  options.decode_addresses = flags.decode;
  options.prefill_addresses = flags.prefill;
  options.key_file = flags.keys;
  options.allow_anyone = flags.allow_anyone;
  options.api_keys = flags.api_keys;
  if (!flags.api_key_file.empty()) {
    auto bytes = ReadSmallFile(flags.api_key_file, kMaxKeyFileBytes);
    if (!bytes.ok()) return bytes.status();
    std::istringstream lines(*bytes);
    for (std::string line; std::getline(lines, line);) {
      absl::StripAsciiWhitespace(&line);
      if (!line.empty() && line[0] != '#') options.api_keys.push_back(line);
    }
    // Without a key the server would be open to all, which nobody who names a file means.
    if (options.api_keys.empty()) return absl::InvalidArgumentError(absl::StrCat(flags.api_key_file, " holds no API key"));
  }
  if (std::ranges::any_of(options.api_keys, [](const std::string& key) { return key.starts_with('#'); })) {
    return absl::InvalidArgumentError("an API key must not begin with '#', which begins a comment in a key file");
  }
  options.hide_cached_tokens = flags.hide_cached_tokens;
  options.finish_transfer_on_disconnect = flags.on_disconnect == "finish-transfer";
  options.max_connections = flags.max_connections;
  options.max_body_bytes = flags.max_body_bytes;
  return options;
}

}  // namespace cofferdam::cli
