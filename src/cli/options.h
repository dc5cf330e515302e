// Command-line options of the four commands, and how they become the options of the servers.
#ifndef COFFERDAM_CLI_OPTIONS_H_
#define COFFERDAM_CLI_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/options.h"
#include "worker/worker.h"

namespace cofferdam::cli {

// Everything that can be set, of whichever command. The defaults are those that --help shows.
struct Flags {
  std::string log_level = "info";
  bool log_json = false;
  std::string config;

  std::string model;  // empty: the embedded one
  // Workers.
  std::string listen;
  std::string fabric;
  std::vector<std::string> pull_from;
  std::vector<std::string> prefill, decode;
  std::string cluster_secret_file;
  uint64_t context_length = 0;
  uint64_t kv_tokens = 0;
  std::string mode = "disaggregated";  // `up` alone, as are the next two
  uint64_t prefill_kv_tokens = 0, decode_kv_tokens = 0;
  bool pull_answers = false;  // `up` alone
  bool shrink_context = false;
  uint32_t page_size = 64;
  int threads = 0;
  std::vector<int> cpus;
  uint32_t chunk_tokens = 512;
  uint32_t max_num_seqs = 256;
  uint32_t max_queue = 1024;
  uint32_t local_prefill_tokens = 0;
  uint32_t reserve_output_tokens = 128;
  size_t transfer_window_bytes = size_t{32} << 20;
  int heartbeat_ms = 1000;
  bool no_repack = false;
  bool lifo_pages = false;
  std::vector<std::string> faults;  // builds with fault points alone
#ifdef COFFERDAM_FAULTS
  std::vector<std::string> inject;
  uint64_t inject_seed = 0, inject_limit = std::numeric_limits<uint64_t>::max();
#endif
  std::string tenure_log;  // empty: tenure::DefaultFolder; "off": none
  uint32_t tenure_log_days = 30, tenure_log_files = 64;
  std::string verify_reads = "tags";
  std::string verify_content = "on";
  bool no_prefix_cache = false;
  uint64_t scrub_bytes_per_second = uint64_t{16} << 20;
  // Gateway.
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::vector<std::string> served_model_names;
  std::string keys;  // a file that `cofferdam keys` makes
  std::vector<std::string> api_keys;
  std::string api_key_file;
  bool allow_anyone = false;
  std::string on_disconnect = "cancel";
  bool hide_cached_tokens = false;
  size_t max_connections = 4096;
  size_t max_body_bytes = size_t{16} << 20;
};

// Adds the options of one command ("up", "gateway", "prefill", "decode") to its subcommand.
void AddOptions(const std::string& command, CLI::App& app, Flags& flags);

// Sets those options of a parsed command that its command line left alone. Throws CLI::Error that names file and option.
void ApplyConfigFile(const std::string& path, CLI::App& app);

// Errors: InvalidArgument that names the option.
absl::StatusOr<worker::WorkerOptions> WorkerOptionsOf(const std::string& role, const Flags& flags);
absl::StatusOr<gateway::GatewayOptions> GatewayOptionsOf(const Flags& flags);

}  // namespace cofferdam::cli

#endif  // COFFERDAM_CLI_OPTIONS_H_
