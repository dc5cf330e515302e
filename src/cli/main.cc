// cofferdam up | gateway | prefill | decode | keys | incidents; and demo-leak in builds with fault points
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sodium.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/log.h"
#ifdef COFFERDAM_FAULTS
#include "cli/demo_leak.h"
#endif
#include "cli/incidents.h"
#include "cli/keys.h"
#include "cli/options.h"
#include "cli/supervisor.h"
#include "cli/up.h"
#include "gateway/gateway.h"
#include "worker/decode_worker.h"
#include "worker/grpc_limits.h"
#include "worker/prefill_worker.h"

namespace cofferdam::cli {
namespace {

constexpr auto kStopGrace = std::chrono::seconds(3);  // for streams that are open at shutdown

int Refuse(const absl::Status& status) {
  log::error("{}", std::string(status.message()));
  // What may be better in a moment (a port, memory) is worth another try; the rest is not.
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ? 1 : kExitRefused;
}

// The memory of this process holds people's text: no core dump, no debugger of another process of this user.
void Harden() {
  prctl(PR_SET_DUMPABLE, 0);
  const rlimit no_core{.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &no_core);
}

// Blocks the stop signals in this thread, and so in all that it starts; one thread waits for them.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

int Serve(const std::vector<grpc::Service*>& services, const std::string& address, const sigset_t& signals) {
  if (address.starts_with("unix:")) {
    if (absl::Status status = RemoveStaleSocket(address.substr(5), SOCK_STREAM); !status.ok()) return Refuse(status);
  }
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(worker::kMaxMessageBytes);
  // Without it a second server could bind the same port and take half of the streams.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  const mode_t old = umask(0077);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  umask(old);
  if (server == nullptr) {
    log::error("{} cannot be listened on: is another process using it?", address);
    return 1;
  }
  log::info("ready on {}", address);
  int signal = 0;
  sigwait(&signals, &signal);
  log::info("stopping");
  server->Shutdown(std::chrono::system_clock::now() + kStopGrace);
  server->Wait();
  return 0;
}

int RunWorker(const std::string& role, const Flags& flags) {
  Harden();
  const sigset_t signals = BlockStopSignals();
  auto options = WorkerOptionsOf(role, flags);
  if (!options.ok()) return Refuse(options.status());
  auto core = worker::WorkerCore::Create(*options);
  if (!core.ok()) return Refuse(core.status());
  if (role == "prefill") {
    auto prefill = worker::PrefillWorker::Create(*std::move(core));
    if (!prefill.ok()) return Refuse(prefill.status());
    return Serve((*prefill)->services(), options->address, signals);
  }
  auto decode = worker::DecodeWorker::Create(*std::move(core));
  if (!decode.ok()) return Refuse(decode.status());
  return Serve((*decode)->services(), options->address, signals);
}

int RunGateway(const Flags& flags) {
  Harden();
  const sigset_t signals = BlockStopSignals();
  auto options = GatewayOptionsOf(flags);
  if (!options.ok()) return Refuse(options.status());
  const bool open = gateway::IsOpen(*options);
  auto gateway = gateway::Gateway::Create(*std::move(options));
  if (!gateway.ok()) return Refuse(gateway.status());
  std::thread stopper([&] {
    int signal = 0;
    sigwait(&signals, &signal);
    (*gateway)->Stop();
  });
  const std::string host = flags.host.find(':') == std::string::npos ? flags.host : absl::StrCat("[", flags.host, "]");
  log::info("listening on http://{}:{}", host, (*gateway)->port());
  if (open) {
    log::warn("no API keys: {} may use the server; see --keys",
              gateway::IsLoopback(flags.host) ? "every user of this machine, on which alone it listens," : "whoever reaches it");
  }
  (*gateway)->Run();
  stopper.join();
  return 0;
}

}  // namespace

int Main(int argc, char** argv) {
  CLI::App app("Cofferdam: an LLM inference server in which one request cannot read another's KV cache.");
  app.require_subcommand(1);
  app.set_version_flag("--version", COFFERDAM_VERSION " (" COFFERDAM_ISA ")");
  Flags flags;
  const std::pair<const char*, const char*> commands[] = {
      {"up", "Start gateway and workers on this machine"},
      {"gateway", "Serve the OpenAI API and route requests to workers"},
      {"prefill", "Compute prompts and let decode workers read their pages"},
      {"decode", "Own requests: fetch and verify pages, generate tokens"},
  };
  for (const auto& [name, help] : commands) AddOptions(name, *app.add_subcommand(name, help), flags);
  IncidentFlags incident_flags;
  CLI::App& incidents = *app.add_subcommand("incidents", "Say from the tenure logs whom an incident could affect");
  AddIncidentOptions(incidents, incident_flags);
  KeysFlags keys_flags;
  CLI::App& keys = *app.add_subcommand("keys", "Make, list and revoke API keys");
  AddKeysOptions(keys, keys_flags);
#ifdef COFFERDAM_FAULTS
  const CLI::App& demo = *app.add_subcommand("demo-leak", "Show with real servers what leaks when no protection is on");
#endif
  const auto is_asked_for = [&](const CLI::App* command) { return command->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_asked_for).empty()) {
    std::fprintf(
        stderr,
        "'%s' is not a command of cofferdam; there are up, gateway, prefill, decode, keys and incidents. See cofferdam --help\n",
        argv[1]);
    return kExitRefused;
  }
  try {
    app.parse(argc, argv);
    if (!flags.config.empty()) ApplyConfigFile(flags.config, *app.get_subcommands().front());
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : kExitRefused;
  }
  if (incidents.parsed()) return RunIncidents(incident_flags);
  if (keys.parsed()) {
    Harden();
    return RunKeys(keys, keys_flags);
  }
#ifdef COFFERDAM_FAULTS
  if (demo.parsed()) return RunDemoLeak();
#endif
  const std::string command = app.get_subcommands().front()->get_name();
  log::Init(command, flags.log_level, flags.log_json);
  if (sodium_init() < 0) return Refuse(absl::InternalError("libsodium could not be initialised"));
  if (command == "up") {
    Harden();
    return RunUp(flags);
  }
  return command == "gateway" ? RunGateway(flags) : RunWorker(command, flags);
}

}  // namespace cofferdam::cli

int main(int argc, char** argv) {
  try {
    return cofferdam::cli::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cofferdam: unexpected failure: %s\n", error.what());
    return 1;
  }
}
