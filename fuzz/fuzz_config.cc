// What an operator writes: command lines, configuration files, key files, secrets and addresses.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/address.h"
#include "cli/options.h"
#include "engine/verify.h"
#include "fabric/fabric.h"
#include "fuzz.h"
#include "gateway/key_ring.h"

namespace cofferdam::cli {
namespace {

constexpr const char* kCommands[] = {"up", "gateway", "prefill", "decode"};

// Two files whose content the input decides, under names that never change.
struct Files {
  fuzz::MemoryFile config, keys;
};
Files& TheFiles() {
  static Files files;
  return files;
}

void CheckGateway(const Flags& flags) {
  const auto options = GatewayOptionsOf(flags);
  if (!options.ok() || !gateway::CheckOptions(*options).ok()) return;
  for (const std::string& address : options->decode_addresses) CD_CHECK(CheckLocalAddress(address).ok(), "workers are local");
  if (gateway::IsOpen(*options)) {
    CD_CHECK(flags.api_keys.empty() && flags.api_key_file.empty() && flags.keys.empty(), "who asks for keys is not open to all");
    CD_CHECK(flags.allow_anyone || gateway::IsLoopback(options->host), "who lets anyone in from anywhere has said so");
    return;
  }
  if (options->api_keys.empty()) return;
  const gateway::KeyRing ring(gateway::RecordsOfPlainKeys(options->api_keys));
  std::set<std::string> domains;
  for (const std::string& key : options->api_keys) {
    const auto grant = ring.Find("Bearer " + key);
    CD_CHECK(grant != nullptr, "whose key is on the ring is let in");
    domains.insert(grant->record.domain);
  }
  CD_CHECK(domains.size() == std::set(options->api_keys.begin(), options->api_keys.end()).size(), "every key has its own domain");
  CD_CHECK(ring.Find("") == nullptr && ring.Find("Bearer ") == nullptr && ring.Find("Bearer #") == nullptr,
           "who has no key is not let in");
}

void CheckWorker(const std::string& role, const Flags& flags) {
  const auto options = WorkerOptionsOf(role, flags);
  if (!options.ok()) return;
  CD_CHECK(CheckLocalAddress(options->address).ok(), "a worker listens on this machine alone");
  CD_CHECK(role != "prefill" || !options->fabric_address.empty(), "a prefill worker says where pages are read");
  CD_CHECK(options->max_sequences <= options->chunk_tokens && options->chunk_tokens <= 8192, "every sequence gets a row of a step");
  CD_CHECK(options->heartbeat_ms >= 50 && options->heartbeat_ms <= 60000 && options->max_queue >= 1, "ranges are kept");
  CD_CHECK(std::ranges::any_of(options->cluster_secret, [](uint8_t byte) { return byte != 0; }), "a worker has a secret");
}

void RunCommand(const std::string& command, const std::vector<std::string>& arguments) {
  CLI::App app("fuzz");
  Flags flags;
  AddOptions(command, app, flags);
  app.name(command);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
    app.parse(reversed);
    if (!flags.config.empty()) ApplyConfigFile(TheFiles().config.path(), app);
  } catch (const CLI::ParseError&) {
    return;
  }
  // The input names no file of this machine, but the two that it wrote.
  if (!flags.api_key_file.empty()) flags.api_key_file = TheFiles().keys.path();
  flags.cluster_secret_file = TheFiles().keys.path();
  flags.model = "model.gguf";
  if (command == "gateway" || command == "up") CheckGateway(flags);
  if (command == "prefill" || command == "decode") CheckWorker(command, flags);
}

void CheckAddresses(const std::string& text) {
  if (CheckLocalAddress(text).ok()) {
    const bool is_path = text.starts_with("unix:") && text.size() > 5;
    const bool is_port = text.starts_with("127.0.0.1:") || text.starts_with("[::1]:") || text.starts_with("localhost:");
    CD_CHECK(is_path || is_port, "an address that is allowed is one of this machine");
  }
  if (!text.starts_with("shm:")) {
    const auto reader = fabric::Connect(text, {}, std::chrono::milliseconds(1));
    CD_CHECK(absl::IsInvalidArgument(reader.status()) || absl::IsUnimplemented(reader.status()), "pages are read over shm: alone");
  }
  if (const auto verify = engine::ParseVerifyReads(text); verify.ok())
    CD_CHECK(engine::ParseVerifyReads(engine::ToString(*verify)) == verify, "a setting can be written and read again");
}

}  // namespace
}  // namespace cofferdam::cli

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cofferdam::cli;
  cofferdam::fuzz::Input input(data, size);
  const std::string command = kCommands[input.Byte() % std::size(kCommands)];
  // Three parts, each up to a zero byte: arguments of a line each, the configuration file, and the file of keys or of a secret.
  std::vector<std::string> parts(1);
  for (const char c : input.Rest()) {
    if (c == '\0' && parts.size() < 3) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  parts.resize(3);
  TheFiles().config.Write(parts[1]);
  TheFiles().keys.Write(parts[2]);
  std::vector<std::string> arguments;
  for (size_t start = 0, end = 0; start < parts[0].size() && arguments.size() < 32; start = end + 1) {
    end = std::min(parts[0].find('\n', start), parts[0].size());
    arguments.push_back(parts[0].substr(start, end - start));
  }
  RunCommand(command, arguments);
  for (const std::string& argument : arguments) CheckAddresses(argument);
  return 0;
}
