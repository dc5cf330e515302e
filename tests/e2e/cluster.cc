#include "e2e/cluster.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

namespace cofferdam::e2e {
namespace {

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string NewFolder() {
  std::string pattern = std::filesystem::temp_directory_path() / "cofferdam-e2e-XXXXXX";
  return mkdtemp(pattern.data()) == nullptr ? "" : pattern;
}

// Starts `program`; its output goes to `log`, its run folder lies in `folder`.
pid_t Spawn(std::vector<std::string> arguments, const std::string& folder, const std::string& log,
            std::string program = COFFERDAM_BINARY) {
  std::vector<char*> argv{program.data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  // The tenure logs: never those of whoever runs the tests.
  setenv("XDG_STATE_HOME", (folder + "/state").c_str(), 1);
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  dup2(fd, STDOUT_FILENO);
  dup2(fd, STDERR_FILENO);
  execv(program.c_str(), argv.data());
  _exit(127);
}

// The exit code, or -1 when it did not end by itself within `longest` and was killed.
int AwaitEnd(pid_t pid, std::chrono::milliseconds longest) {
  int status = 0;
  if (!Eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; }, longest)) {
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

bool Eventually(const std::function<bool()>& condition, std::chrono::milliseconds longest) {
  const auto end = std::chrono::steady_clock::now() + kPatience * longest;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(10ms);
  }
  return true;
}

std::optional<std::string> StoriesModel() {
  const char* folder = std::getenv("COFFERDAM_TEST_MODELS");
  if (folder == nullptr) return std::nullopt;
  std::string path = std::string(folder) + "/stories260K.gguf";
  return std::filesystem::exists(path) ? std::optional(std::move(path)) : std::nullopt;
}

Ended RunCofferdam(const std::vector<std::string>& arguments) { return RunProgram(COFFERDAM_BINARY, arguments); }

Ended RunProgram(const std::string& program, const std::vector<std::string>& arguments) {
  const std::string folder = NewFolder();
  const pid_t pid = Spawn(arguments, folder, folder + "/log", program);
  Ended ended;
  ended.exit_code = pid < 0 ? -1 : AwaitEnd(pid, 60000ms);
  ended.output = ReadFile(folder + "/log");
  std::filesystem::remove_all(folder);
  return ended;
}

Process::Process(const std::vector<std::string>& arguments, std::string log_path)
    : log_path_(std::move(log_path)), pid_(Spawn(arguments, std::filesystem::path(log_path_).parent_path(), log_path_)) {}

Process::~Process() {
  if (pid_ <= 1) return;
  kill(pid_, SIGTERM);
  AwaitEnd(pid_, 15000ms);
}

std::string Process::log() const { return ReadFile(log_path_); }

bool Process::Says(const std::string& text, std::chrono::milliseconds longest) const {
  return Eventually([&] { return log().find(text) != std::string::npos; }, longest);
}

void Process::Signal(int signal) const { kill(pid_, signal); }

Cluster::Cluster(std::vector<std::string> arguments, Mode mode)
    : arguments_(std::move(arguments)), mode_(mode), folder_(NewFolder()) {}

Cluster::~Cluster() {
  Stop();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

bool Cluster::Start() {
  std::vector<std::string> arguments{"up", "--port", "0"};
  if (colocated()) arguments.insert(arguments.end(), {"--mode", "colocated"});
  arguments.insert(arguments.end(), arguments_.begin(), arguments_.end());
  pid_ = Spawn(std::move(arguments), folder_, folder_ + "/log");
  const std::string mark = "gateway listens on port ";
  const bool listening = pid_ > 0 && Eventually([&] { return log().find(mark) != std::string::npos; }, 60000ms);
  if (listening) port_ = static_cast<uint16_t>(std::atoi(log().c_str() + log().find(mark) + mark.size()));
  const bool healthy = listening && AwaitHealthy(60000ms);
  EXPECT_TRUE(healthy) << log();
  return healthy;
}

int Cluster::Stop() {
  const pid_t pid = std::exchange(pid_, -1);
  if (pid <= 0) return -1;
  kill(pid, SIGINT);
  return AwaitEnd(pid, 40000ms);
}

bool Cluster::AwaitHealthy(std::chrono::milliseconds longest) {
  return Eventually([&] { return Ask("GET /health HTTP/1.1\r\nHost: test\r\n\r\n").status == 200; }, longest);
}

std::vector<std::string> Cluster::roles() const {
  return colocated() ? std::vector<std::string>{"decode"} : std::vector<std::string>{"prefill", "decode"};
}

std::string Cluster::log() const { return ReadFile(folder_ + "/log"); }

pid_t Cluster::ProcessOf(const std::string& role) const {
  const std::string text = log(), mark = role + " started, process ";
  const size_t at = text.rfind(mark);
  return at == std::string::npos ? -1 : static_cast<pid_t>(std::atoi(text.c_str() + at + mark.size()));
}

void Cluster::Signal(const std::string& role, int signal) const {
  const pid_t pid = ProcessOf(role);
  ASSERT_GT(pid, 1);
  ASSERT_EQ(kill(pid, signal), 0);
}

std::string Cluster::SocketOf(const std::string& role) const {
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    const auto socket = entry.path() / (role + ".sock");
    if (std::filesystem::exists(socket)) return "unix:" + socket.string();
  }
  return "unix:/nowhere";
}

Response Cluster::Ask(const std::string& bytes) const {
  RawClient client(port_);
  if (!client.connected()) return {};
  client.Send(bytes);
  return client.Read();
}

Response Cluster::Complete(const Json& body) const { return Ask(http::Post("/v1/completions", body.dump())); }
Response Cluster::Chat(const Json& body) const { return Ask(http::Post("/v1/chat/completions", body.dump())); }

std::unique_ptr<v1::Decode::Stub> Cluster::Decode() const {
  return v1::Decode::NewStub(grpc::CreateChannel(SocketOf("decode"), grpc::InsecureChannelCredentials()));
}

std::unique_ptr<v1::Prefill::Stub> Cluster::Prefill() const {
  return v1::Prefill::NewStub(grpc::CreateChannel(SocketOf("prefill"), grpc::InsecureChannelCredentials()));
}

v1::WorkerInfo Cluster::Info(const std::string& role) const {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * 2s);
  v1::WorkerInfo info;
  const grpc::Status status = role == "decode" ? Decode()->Info(&context, {}, &info) : Prefill()->Info(&context, {}, &info);
  return status.ok() ? info : v1::WorkerInfo();
}

void Cluster::AwaitMetrics() const { std::this_thread::sleep_for(200ms); }

double Cluster::Metric(const std::string& role, const std::string& name, const std::string& state) const {
  const v1::WorkerInfo info = Info(role);
  double sum = -1;
  for (const v1::Metric& metric : info.metrics()) {
    if (metric.name() != name || (!state.empty() && (metric.label_values_size() == 0 || metric.label_values(0) != state))) continue;
    sum = std::max(sum, 0.0) + metric.value();
  }
  return sum;
}

bool Cluster::NobodyHoldsAPage(std::chrono::milliseconds longest) const {
  return Eventually(
      [&] {
        for (const std::string& role : roles()) {
          // One answer of the worker: two would not speak of the same moment.
          double unused = 0, all = -1;
          const v1::WorkerInfo info = Info(role);
          for (const v1::Metric& metric : info.metrics()) {
            if (metric.name() == "kv_pages_total") all = metric.value();
            if (metric.name() != "kv_pages" || metric.label_values_size() != 1) continue;
            if (metric.label_values(0) == "free" || metric.label_values(0) == "cached") unused += metric.value();
          }
          if (unused != all) return false;
        }
        return true;
      },
      longest);
}

}  // namespace cofferdam::e2e
