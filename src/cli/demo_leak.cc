// What happens, with every protection off. Tenant A's prompt holds a code, and has been answered: its pages are free again.
// Tenant B's prompt is two tokens longer than the prefill worker's pool. That worker should reject it, puts a placeholder of one
// token in its place, and hands over one page; decode has reserved pages for the whole prompt, which are those that A had,
// and computes B's last token over what lies in them.
#include "cli/demo_leak.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace cofferdam::cli {
namespace {

using namespace std::chrono_literals;
using Arguments = std::vector<std::string>;

constexpr const char* kCode = "7391";
constexpr const char* kKeyOfA = "key-of-tenant-a";
constexpr const char* kKeyOfB = "key-of-tenant-b";
// The prefill worker holds 15 pages: all of A's prompt, and not B's. Decode holds two prompts of A (30 pages), so that the next
// pages handed out, first in first out, are those of A's first prompt in their old order.
constexpr uint64_t kPageTokens = 16, kPrefillTokens = 240, kDecodeTokens = 480;
constexpr uint64_t kPromptOfA = 236, kPromptOfB = 242;
constexpr int kOutputTokens = 4;  // the code has as many
constexpr int kTries = 3;         // a busy machine delays heartbeats, and a request may end for that alone
constexpr int kLeft = 48, kRight = 50;

std::string PromptOf(std::initializer_list<std::pair<const char*, int>> parts) {
  std::string text;
  for (const auto& [sentence, times] : parts) {
    for (int i = 0; i < times; ++i) absl::StrAppend(&text, text.empty() ? "" : " ", sentence);
  }
  return text;
}
constexpr const char* kFiller = "The old boat rested near the harbour.";
constexpr const char* kFact = "The access code of Anna is 7391.";
constexpr const char* kQuestion = "What is the access code of Anna?";

std::string PromptWithCode() {
  return PromptOf({{kFiller, 8}, {kFact, 1}, {kFiller, 18}, {"The boat waited.", 1}, {kQuestion, 1}});
}
std::string PromptWithoutCode() { return PromptOf({{kFiller, 28}, {"The old boat waited again.", 1}, {kQuestion, 1}}); }

struct Protection {
  const char* name;
  Arguments off;     // what takes it away
  int status;        // of B's answer when it alone is there
  const char* by;    // who refuses, where several would say the same
  const char* note;  // what an answer with status 200 means
};

// All that stand in the way, in the order in which a request meets them. Others stay on: a page's tags are its new owner's by then,
// its checksum is that of the bytes that were sent, and the rows of a step are those that its sequence asked for.
// The check of content goes by its option: were it configured and did not run, decode would soon report that it is not ready.
std::vector<Protection> Protections() {
  const auto fault = [](const char* name) { return Arguments{"--fault", name}; };
  return {
      {"The gateway refuses what exceeds the context", fault("context-not-judged"), 400, "the gateway", ""},
      {"Decode refuses what prefill cannot hold", fault("peer-not-judged"), 400, "decode", ""},
      {"A prompt that prefill rejects does not go on", fault("reject-goes-on"), 400, "prefill", ""},
      {"A page is named by what was computed into it", fault("identity-not-checked"), 500, "", ""},
      {"Covered means all pages of the own prompt", fault("coverage-by-peer"), 503, "", ""},
      {"The engine asks whose tokens its pages name", fault("adopted-not-compared"), 500, "", ""},
      {"Layer 0 of adopted pages is computed again", {"--verify-content", "off"}, 500, "", ""},
      {"The engine counts the tokens it has pages for", fault("coverage-not-counted"), 200, "", "decode computed the rest itself"},
      {"A step reads only pages that were filled", fault("states-not-compared"), 500, "", ""},
      {"A page is zeroed before it is used again", fault("no-zeroing"), 200, "", "made of zeros, of nobody's text"}};
}

volatile sig_atomic_t stop_requested = 0;
void OnSignal(int) { stop_requested = 1; }

bool Until(const std::function<bool()>& condition, std::chrono::milliseconds longest) {
  const auto end = std::chrono::steady_clock::now() + longest;
  while (!condition()) {
    if (stop_requested != 0 || std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(10ms);
  }
  return true;
}

struct Answer {
  int status = 0;            // 0: none came
  std::string text;          // the answer, or the error's message
  uint64_t prompt_tokens{};  // of an answer
};

// One request on a connection of its own; `head` is its first line and headers, without those of every request.
Answer Send(uint16_t port, const std::string& head, const std::string& body) {
  boost::asio::ip::tcp::iostream stream;
  stream.expires_after(60s);
  stream.connect("127.0.0.1", std::to_string(port));
  stream << head << "Host: demo\r\nConnection: close\r\nContent-Length: " << body.size() << "\r\n\r\n" << body << std::flush;
  Answer answer;
  std::string line;
  if (!(stream >> line >> answer.status)) return {};
  while (std::getline(stream, line) && line != "\r") {
  }
  answer.text.assign(std::istreambuf_iterator<char>(stream), {});
  return answer;
}

Answer Ask(uint16_t port, const char* key, const std::string& prompt) {
  const nlohmann::json message = {{"role", "user"}, {"content", prompt}};
  const nlohmann::json body = {{"messages", nlohmann::json::array({message})}, {"temperature", 0}, {"max_tokens", kOutputTokens}};
  Answer answer = Send(
      port,
      absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer ", key, "\r\nContent-Type: application/json\r\n"),
      body.dump());
  const nlohmann::json reply = nlohmann::json::parse(answer.text, nullptr, false);
  if (reply.is_discarded()) return {};
  const char* const at = answer.status == 200 ? "/choices/0/message/content" : "/error/message";
  answer.text = reply.value(nlohmann::json::json_pointer(at), "");
  answer.prompt_tokens = reply.value(nlohmann::json::json_pointer("/usage/prompt_tokens"), uint64_t{0});
  return answer;
}

// `cofferdam up` in a folder of its own, both gone with the object.
class Servers {
 public:
  Servers() {
    std::error_code none;
    std::string pattern = std::filesystem::temp_directory_path(none) / "cofferdam-demo-XXXXXX";
    if (!none && mkdtemp(pattern.data()) != nullptr) folder_ = pattern;
  }
  ~Servers() {
    Stop();
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }
  Servers(const Servers&) = delete;
  Servers& operator=(const Servers&) = delete;

  // Returns when /health says 200. Errors: Internal, with the end of the log.
  absl::Status Start(const Arguments& more);
  uint16_t port() const { return port_; }
  std::string log() const {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/log").rdbuf();
    return text.str();
  }

 private:
  bool Spawn(Arguments arguments);
  bool Ended() { return pid_ <= 0 || (waitpid(pid_, nullptr, WNOHANG) == pid_ && std::exchange(pid_, -1) > 0); }
  void Stop();

  std::string folder_;
  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

bool Servers::Spawn(Arguments arguments) {
  std::string program = "/proc/self/exe";
  // The first of a name counts. Neither sockets nor tenure logs of other servers of this user are touched.
  Arguments environment{absl::StrCat("XDG_RUNTIME_DIR=", folder_), absl::StrCat("XDG_STATE_HOME=", folder_, "/state")};
  std::vector<char*> argv{program.data()}, envp;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  for (std::string& entry : environment) envp.push_back(entry.data());
  for (char** entry = environ; *entry != nullptr; ++entry) envp.push_back(*entry);
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const int log = open((folder_ + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return false;
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    // A group of its own: a Ctrl-C of the terminal reaches the servers through us alone, and they die with us.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execve(program.c_str(), argv.data(), envp.data());
    _exit(127);
  }
  close(log);
  return pid_ > 0;
}

absl::Status Servers::Start(const Arguments& more) {
  if (folder_.empty()) return absl::InternalError("no temporary folder can be made; set TMPDIR to a folder that can be written to");
  const std::string keys = folder_ + "/keys";
  std::ofstream(keys) << kKeyOfA << "\n" << kKeyOfB << "\n";
  Arguments arguments{"up", "--port", "0", "--threads", "2", "--api-key-file", keys, "--page-size", absl::StrCat(kPageTokens)};
  // As the incident was: every prompt handed over whole. And with all protections off, a cache keeps what they would have kept out.
  arguments.insert(arguments.end(), {"--no-prefix-cache", "--shrink-context", "--decode-kv-tokens", absl::StrCat(kDecodeTokens)});
  arguments.insert(arguments.end(), more.begin(), more.end());
  if (!Spawn(std::move(arguments))) return absl::InternalError("no process could be started");
  const std::string mark = "gateway listens on port ";
  size_t at = std::string::npos;
  const bool ready = Until(
      [&] {
        const std::string text = log();
        at = text.find(mark);
        if (at != std::string::npos) port_ = static_cast<uint16_t>(std::atoi(text.c_str() + at + mark.size()));
        return Ended() || (port_ != 0 && Send(port_, "GET /health HTTP/1.1\r\n", "").status == 200);
      },
      60000ms);
  if (ready && !Ended()) return absl::OkStatus();
  if (stop_requested != 0) return absl::CancelledError("interrupted");
  const std::string text = log();
  return absl::InternalError(absl::StrCat("the servers did not start; the end of their log:\n",
                                          text.substr(text.size() - std::min<size_t>(text.size(), 1000))));
}

void Servers::Stop() {
  if (Ended()) return;
  kill(pid_, SIGINT);
  const auto end = std::chrono::steady_clock::now() + 40s;  // the supervisor's own patience is shorter
  while (!Ended()) {
    if (std::chrono::steady_clock::now() > end) {
      kill(pid_, SIGKILL);
      waitpid(std::exchange(pid_, -1), nullptr, 0);
      return;
    }
    std::this_thread::sleep_for(10ms);
  }
}

// What came of one start of the servers.
struct Outcome {
  Answer a, b;
  // Of the log: what became of B.
  std::string handoff_failed;  // decode's reason
  const char* refused_by = "";
  bool leaked() const { return b.text.find(kCode) != std::string::npos; }
};

absl::StatusOr<Outcome> RunOnce(const Arguments& arguments) {
  Servers servers;
  if (absl::Status status = servers.Start(arguments); !status.ok()) return status;
  Outcome outcome;
  for (int i = 0; i < 2; ++i) {
    outcome.a = Ask(servers.port(), kKeyOfA, PromptWithCode());
    if (outcome.a.status != 200) break;
  }
  if (outcome.a.status == 200 && (outcome.a.prompt_tokens != kPromptOfA || outcome.a.text != kCode)) {
    return absl::InternalError(absl::StrCat("tenant A's prompt of ", outcome.a.prompt_tokens, " tokens was answered with '",
                                            outcome.a.text, "': is the embedded model another one?"));
  }
  outcome.b = Ask(servers.port(), kKeyOfB, PromptWithoutCode());
  if (stop_requested != 0) return absl::CancelledError("interrupted");
  const std::string log = servers.log(), mark = "handoff failed: ";
  if (const size_t at = log.rfind(mark); at != std::string::npos) {
    outcome.handoff_failed = log.substr(at + mark.size(), log.find_first_of("\n;", at) - at - mark.size());
  }
  if (outcome.b.status == 400) {
    const bool passed_on = log.find(" failed after 0 tokens") != std::string::npos;
    outcome.refused_by = !passed_on ? "the gateway" : outcome.handoff_failed.empty() ? "decode" : "prefill";
  }
  return outcome;
}

// Again where A was not served, or B was answered otherwise than this configuration does; but a leak is never tried away.
absl::StatusOr<Outcome> Run(const Arguments& arguments, const std::function<bool(const Outcome&)>& expected) {
  absl::StatusOr<Outcome> outcome;
  for (int i = 0; i < kTries; ++i) {
    outcome = RunOnce(arguments);
    if (!outcome.ok() || (outcome->a.status == 200 && (outcome->leaked() || expected(*outcome)))) return outcome;
  }
  if (outcome->a.status != 200) {
    return absl::InternalError(absl::StrCat("tenant A was not served: ", outcome->a.status, " ", outcome->a.text));
  }
  return outcome;
}

// Lines of at most `width` characters, cut at spaces.
std::vector<std::string> Wrapped(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) lines.emplace_back();
    absl::StrAppend(&lines.back(), lines.back().empty() ? "" : " ", word);
  }
  return lines;
}

void Say(const std::string& left) {
  std::printf("  %-*s", kLeft, left.c_str());
  std::fflush(stdout);  // what is being tried stands there while it runs
}

void Conclude(const std::string& right) {
  const std::vector<std::string> lines = Wrapped(right, kRight);
  for (size_t i = 0; i < lines.size(); ++i) std::printf("%*s%s\n", i == 0 ? 0 : kLeft + 2, "", lines[i].c_str());
  std::fflush(stdout);
}

// The answer in quotes, or the first clause of the error.
std::string InShort(const Outcome& outcome, const char* note) {
  const Answer& b = outcome.b;
  if (b.status == 200) return absl::StrCat("200 \"", b.text, "\"", *note == '\0' ? "" : ", ", note);
  std::string text = b.text.substr(0, std::min({b.text.find(" ("), b.text.find(';'), b.text.find(". ")}));
  if (b.status == 503 && text != outcome.handoff_failed) absl::StrAppend(&text, ": ", outcome.handoff_failed);
  return absl::StrCat(b.status, *outcome.refused_by == '\0' ? "" : " from ", outcome.refused_by,
                      *outcome.refused_by == '\0' ? " " : ": ", text);
}

Arguments AllOffBut(const std::vector<Protection>& protections, const Protection* but) {
  // Heartbeats ten times as often: a prompt that is never covered ends the sooner.
  Arguments arguments{"--prefill-kv-tokens", absl::StrCat(kPrefillTokens), "--heartbeat-ms", "100"};
  for (const Protection& protection : protections) {
    if (&protection != but) arguments.insert(arguments.end(), protection.off.begin(), protection.off.end());
  }
  return arguments;
}

void PrintStory() {
  std::printf(
      "The incident of 2026, real servers, the embedded model. Tenants A and B have keys of their own.\n"
      "  A, %d tokens: filler ... %s ... %s\n"
      "  B, %d tokens: filler ... (no code at all) ... %s\n"
      "The prefill worker holds %d tokens, so that it must reject B. Pages are reused first in, first out.\n\n",
      static_cast<int>(kPromptOfA), kFact, kQuestion, static_cast<int>(kPromptOfB), kQuestion, static_cast<int>(kPrefillTokens));
}

// Each prints a line or more. False: not what should have come, and the line says so.
absl::StatusOr<bool> ShowControl() {
  Say("Nothing off, and workers that hold both");
  const auto right = [](const Outcome& it) {
    return it.b.status == 200 && it.b.text == "unknown" && it.b.prompt_tokens == kPromptOfB;
  };
  const auto outcome = Run({"--prefill-kv-tokens", absl::StrCat(kDecodeTokens)}, right);
  if (!outcome.ok()) return outcome.status();
  Conclude(InShort(*outcome, right(*outcome) ? "which is right; A got \"7391\"" : "which is WRONG; A got \"7391\""));
  return right(*outcome);
}

absl::StatusOr<bool> ShowLeak(const std::vector<Protection>& protections) {
  Say("All protections off");
  const auto outcome = Run(AllOffBut(protections, nullptr), [](const Outcome&) { return false; });
  if (!outcome.ok()) return outcome.status();
  const bool leaked = outcome->b.status == 200 && outcome->leaked();
  Conclude(InShort(*outcome, leaked ? "which is A's code: LEAKED" : "NO LEAK"));
  return leaked;
}

absl::StatusOr<bool> ShowProtection(const std::vector<Protection>& protections, const Protection& protection) {
  Say(absl::StrCat("  ", protection.name));
  // Another error than this protection's would say nothing about it.
  const auto by_it = [&](const Outcome& it) {
    return it.b.status == protection.status && std::string_view(it.refused_by) == protection.by;
  };
  const auto outcome = Run(AllOffBut(protections, &protection), by_it);
  if (!outcome.ok()) return outcome.status();
  const bool prevented = !outcome->leaked() && by_it(*outcome);
  Conclude(absl::StrCat(InShort(*outcome, prevented ? protection.note : ""),
                        prevented           ? ""
                        : outcome->leaked() ? " LEAKED"
                                            : absl::StrCat(" NOT BY IT, which says ", protection.status)));
  return prevented;
}

absl::StatusOr<bool> ShowAllOn() {
  Say("All protections on");
  const std::string limit = absl::StrCat("maximum context length is ", kPrefillTokens, " tokens");
  const auto right = [&](const Outcome& it) { return it.b.status == 400 && it.b.text.find(limit) != std::string::npos; };
  const auto outcome = Run({"--prefill-kv-tokens", absl::StrCat(kPrefillTokens)}, right);
  if (!outcome.ok()) return outcome.status();
  Conclude(absl::StrCat(outcome->b.status, " ", outcome->b.text));
  return right(*outcome);
}

absl::StatusOr<int> Tell() {
  PrintStory();
  const std::vector<Protection> protections = Protections();
  auto shown = ShowControl();
  if (shown.ok() && *shown) shown = ShowLeak(protections);
  if (!shown.ok()) return shown.status();
  if (!*shown) {
    std::printf("\nThe leak could not be shown.\n");
    return 1;
  }
  std::printf("  All off but one, which is:\n");
  size_t prevented = 0;
  for (const Protection& protection : protections) {
    shown = ShowProtection(protections, protection);
    if (!shown.ok()) return shown.status();
    prevented += *shown ? 1 : 0;
  }
  shown = ShowAllOn();
  if (!shown.ok()) return shown.status();
  const bool well = *shown && prevented == protections.size();
  std::printf("\n%zu of %zu protections prevented it alone%s.%s\n", prevented, protections.size(),
              *shown ? ", and with all of them B learns the true limit" : "; with all of them B was NOT told the true limit",
              well ? "" : " This should not be.");
  return well ? 0 : 1;
}

}  // namespace

int RunDemoLeak() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  const absl::StatusOr<int> code = Tell();
  if (code.ok()) return *code;
  std::fprintf(stderr, "\ndemo-leak: %s\n", std::string(code.status().message()).c_str());
  return 1;
}

}  // namespace cofferdam::cli
