// Keeps child processes running: `up` is one of these over three commands.
#ifndef COFFERDAM_CLI_SUPERVISOR_H_
#define COFFERDAM_CLI_SUPERVISOR_H_

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace cofferdam::cli {

struct ChildSpec {
  std::string name;                      // prefill, decode, gateway
  std::vector<std::string> arguments;    // behind the program's own path
  std::vector<std::string> environment;  // "NAME=value", added to this process's
};

// Single-threaded. Children get SIGTERM when this process dies, however it dies.
class Supervisor {
 public:
  explicit Supervisor(std::vector<ChildSpec> children);
  // Starts all, restarts one that ends (with back-off, 0.2 s doubling to 10 s; a child that ran for 30 s starts
  // afresh), and returns after SIGINT or SIGTERM when all have ended. A child that ends with kExitRefused, or fails
  // to live for a second five times in a row, ends everything. Returns the exit code for main.
  int Run();

 private:
  struct Child {
    ChildSpec spec;
    pid_t pid = -1;
    std::chrono::steady_clock::time_point started, restart_at;
    std::chrono::milliseconds back_off{200};
    int quick_deaths = 0;
  };

  bool Start(Child& child);
  // Returns false when everything must end.
  bool OnExit(Child& child, int status);
  void StopAll();

  std::vector<Child> children_;
  bool refused_ = false;
};

// A process that refuses its configuration ends with this: starting it again cannot help.
inline constexpr int kExitRefused = 78;

}  // namespace cofferdam::cli

#endif  // COFFERDAM_CLI_SUPERVISOR_H_
