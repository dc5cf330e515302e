// What the fabric's tests share.
#ifndef COFFERDAM_FABRIC_TESTING_H_
#define COFFERDAM_FABRIC_TESTING_H_

#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "fabric/fabric.h"

namespace cofferdam::fabric::testing {

// A directory of its own, removed with all that is in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = std::filesystem::temp_directory_path() / "fabric-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A read whose end can be waited for. The calls of its ReadDone are counted.
class PendingRead {
 public:
  PendingRead(Reader& reader, const ReadRequest& request) : state_(std::make_shared<State>()) {
    reader.Read(request, [state = state_](absl::Status status) {
      if (++state->calls == 1) state->result.set_value(std::move(status));
    });
  }
  absl::Status Await() { return state_->result.get_future().get(); }
  int calls() const { return state_->calls; }

 private:
  struct State {
    std::atomic<int> calls{0};
    std::promise<absl::Status> result;
  };
  std::shared_ptr<State> state_;
};

inline absl::Status ReadNow(Reader& reader, const ReadRequest& request) { return PendingRead(reader, request).Await(); }

// Starts `body` in a forked process; its exit status is what `body` returns. -1 when there is none.
inline pid_t StartChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(body());
  }
  return child;
}

// The exit status of a child once it has ended, or -1 when it was killed or never started.
inline int EndOf(pid_t child) {
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

inline int RunInChild(const std::function<int()>& body) { return EndOf(StartChild(body)); }

}  // namespace cofferdam::fabric::testing

#endif  // COFFERDAM_FABRIC_TESTING_H_
