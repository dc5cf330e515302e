#include "cli/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace cofferdam::cli {
namespace {

using std::chrono::steady_clock;
constexpr auto kHealthyAfter = std::chrono::seconds(30);
constexpr auto kQuickDeath = std::chrono::seconds(1);
constexpr auto kStopPatience = std::chrono::seconds(10);
constexpr auto kMaxBackOff = std::chrono::milliseconds(10000);
constexpr int kMaxQuickDeaths = 5;

volatile sig_atomic_t stop_requested = 0;
void OnSignal(int) { stop_requested = 1; }

}  // namespace

Supervisor::Supervisor(std::vector<ChildSpec> children) {
  for (ChildSpec& spec : children) children_.push_back({.spec = std::move(spec), .pid = -1, .started = {}, .restart_at = {}});
}

bool Supervisor::Start(Child& child) {
  std::vector<char*> argv;
  std::string program = "/proc/self/exe";
  argv.push_back(program.data());
  for (std::string& argument : child.spec.arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (char** entry = environ; *entry != nullptr; ++entry) envp.push_back(*entry);
  for (std::string& entry : child.spec.environment) envp.push_back(entry.data());
  envp.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // A group of its own, so that a Ctrl-C of the terminal reaches the children through us alone, in order.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    execve(program.c_str(), argv.data(), envp.data());
    _exit(127);
  }
  if (pid < 0) {
    log::error("{} could not be started: {}", child.spec.name, std::generic_category().message(errno));
    return false;
  }
  child.pid = pid;
  child.started = steady_clock::now();
  log::info("{} started, process {}", child.spec.name, pid);
  return true;
}

bool Supervisor::OnExit(Child& child, int status) {
  child.pid = -1;
  const auto lived = steady_clock::now() - child.started;
  if (WIFEXITED(status) && (WEXITSTATUS(status) == kExitRefused || WEXITSTATUS(status) == 127)) {
    log::error("{} refused to start; its reason stands above", child.spec.name);
    refused_ = true;
    return false;
  }
  if (lived >= kHealthyAfter) {
    child.back_off = std::chrono::milliseconds(200);
  }
  if (lived >= kQuickDeath) child.quick_deaths = 0;
  if (lived < kQuickDeath && ++child.quick_deaths >= kMaxQuickDeaths) {
    log::error("{} ended within a second {} times in a row; giving up", child.spec.name, child.quick_deaths);
    return false;
  }
  log::warn("{} ended ({} {}); it starts again in {} ms", child.spec.name, WIFSIGNALED(status) ? "signal" : "exit code",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), child.back_off.count());
  child.restart_at = steady_clock::now() + child.back_off;
  child.back_off = std::min(child.back_off * 2, kMaxBackOff);
  return true;
}

void Supervisor::StopAll() {
  // The gateway first: it lets running answers end for a moment while the workers still serve them.
  for (size_t i = children_.size(); i-- > 0;) {
    Child& child = children_[i];
    if (child.pid < 0) continue;
    kill(child.pid, SIGTERM);
    const auto deadline = steady_clock::now() + kStopPatience;
    while (waitpid(child.pid, nullptr, WNOHANG) == 0) {
      if (steady_clock::now() > deadline) {
        log::warn("{} did not stop in time and is killed", child.spec.name);
        kill(child.pid, SIGKILL);
        waitpid(child.pid, nullptr, 0);
        break;
      }
      usleep(10000);
    }
    log::info("{} stopped", child.spec.name);
    child.pid = -1;
  }
}

int Supervisor::Run() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  bool healthy = true;
  for (Child& child : children_) healthy = healthy && Start(child);
  while (healthy && stop_requested == 0) {
    for (Child& child : children_) {
      int status = 0;
      if (child.pid >= 0 && waitpid(child.pid, &status, WNOHANG) == child.pid) {
        healthy = healthy && OnExit(child, status);
      } else if (child.pid < 0 && healthy && steady_clock::now() >= child.restart_at) {
        healthy = Start(child);
      }
    }
    usleep(20000);
  }
  StopAll();
  return healthy ? 0 : refused_ ? kExitRefused : 1;
}

}  // namespace cofferdam::cli
