// The whole system as `cofferdam up` starts it: gateway and workers as real processes.
#ifndef COFFERDAM_TESTS_E2E_CLUSTER_H_
#define COFFERDAM_TESTS_E2E_CLUSTER_H_

#include <cofferdam.grpc.pb.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/http_client.h"
#include "support/patience.h"

namespace cofferdam::e2e {

using http::Json;
using http::RawClient;
using http::Response;
using namespace std::chrono_literals;

// Whether `condition` becomes true within `longest`.
bool Eventually(const std::function<bool()>& condition, std::chrono::milliseconds longest = 5000ms);

// stories260K.gguf of COFFERDAM_TEST_MODELS; none where that folder is absent.
std::optional<std::string> StoriesModel();

// Runs the built binary with `arguments` until it ends (at most a minute). Output is stdout and stderr.
struct Ended {
  int exit_code = -1;  // -1: it did not end by itself
  std::string output;
};
Ended RunCofferdam(const std::vector<std::string>& arguments);
// The same with another program.
Ended RunProgram(const std::string& program, const std::vector<std::string>& arguments);

// One process of the built binary, killed with the object. Its output goes to a file.
class Process {
 public:
  Process(const std::vector<std::string>& arguments, std::string log_path);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  std::string log() const;
  // Whether `text` comes in its output.
  bool Says(const std::string& text, std::chrono::milliseconds longest = 10000ms) const;
  void Signal(int signal) const;

 private:
  std::string log_path_;
  pid_t pid_;
};

enum class Mode { kDisaggregated, kColocated };

// Not thread-safe, but for the clients it hands out, which are independent.
class Cluster {
 public:
  // `arguments` follow `up --port 0`, and --mode where it is not the default.
  explicit Cluster(std::vector<std::string> arguments, Mode mode = Mode::kDisaggregated);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Starts and waits until /health says 200. On failure the logs are the message of a failed expectation.
  bool Start();
  // As Ctrl-C does; returns the exit code, or -1 when it had to be killed.
  int Stop();
  bool AwaitHealthy(std::chrono::milliseconds longest = 20000ms);

  bool colocated() const { return mode_ == Mode::kColocated; }
  // Of its workers.
  std::vector<std::string> roles() const;
  uint16_t port() const { return port_; }
  std::string log() const;
  // The process that the supervisor started last for a role ("prefill", "decode", "gateway"); -1 when unknown.
  pid_t ProcessOf(const std::string& role) const;
  // A child of the supervisor has this signal sent to it.
  void Signal(const std::string& role, int signal) const;
  std::string SocketOf(const std::string& role) const;  // "unix:PATH"

  Response Ask(const std::string& bytes) const;
  Response Complete(const Json& body) const;
  Response Chat(const Json& body) const;

  std::unique_ptr<v1::Decode::Stub> Decode() const;
  std::unique_ptr<v1::Prefill::Stub> Prefill() const;
  // What the worker says of itself right now; empty when it does not answer.
  v1::WorkerInfo Info(const std::string& role) const;
  // Workers publish their metrics now and then: after this they know of all that was answered before it.
  void AwaitMetrics() const;
  // A metric of a worker; for kv_pages the sum over states unless `state` names one. -1 when it is not there.
  double Metric(const std::string& role, const std::string& name, const std::string& state = "") const;
  // Whether every page of every pool is free, or lies in the prefix cache unused, within `longest`; nothing is quarantined.
  bool NobodyHoldsAPage(std::chrono::milliseconds longest = 5000ms) const;

 private:
  std::vector<std::string> arguments_;
  Mode mode_;
  std::string folder_;
  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

}  // namespace cofferdam::e2e

#endif  // COFFERDAM_TESTS_E2E_CLUSTER_H_
