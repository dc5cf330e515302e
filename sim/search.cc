#include "sim/search.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "sim/scenario.h"
#include "sim/world.h"

namespace cofferdam::sim {
namespace {

using WallClock = std::chrono::steady_clock;

// What a process tells of itself, also when it ends in the middle.
struct Report {
  uint64_t seed = 0;  // under way
  uint64_t seeds = 0, events = 0, requests = 0, answered = 0, failed = 0, tokens = 0, handoff_failures = 0;
  bool found = false;
  char kind[32] = {}, what[512] = {};
  uint64_t followed = 0;  // of a trail
  char stopped[256] = {};
  bool on_the_way = true;  // unless it lives to say otherwise
};

template <size_t N>
void Put(char (&to)[N], std::string_view text) {
  const size_t bytes = std::min(N - 1, text.size());
  std::memcpy(to, text.data(), bytes);
  to[bytes] = '\0';
}

void Add(Report& report, const Outcome& outcome) {
  ++report.seeds;
  report.events += outcome.events;
  report.requests += outcome.requests;
  report.answered += outcome.answered;
  report.failed += outcome.failed;
  report.tokens += outcome.tokens;
  report.handoff_failures += outcome.handoff_failures;
}

// Runs `body` in a process of its own. When it ends by a signal, the report says so with the last line that it printed.
template <typename Body>
void InProcess(Report& report, Body body) {
  std::FILE* const said = std::tmpfile();
  std::fflush(nullptr);  // or the child writes it, too
  const pid_t child = fork();
  if (child == 0) {
    if (said != nullptr) dup2(fileno(said), STDERR_FILENO);
    body();
    std::exit(0);  // not _exit: what it counted for scripts/coverage is written on the way
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    report.found = true;
    Put(report.kind, "no process");
    Put(report.what, std::strerror(errno));
  } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    report.found = true;
    Put(report.kind, "ended");
    char line[sizeof report.what] = {};
    if (said != nullptr) {
      std::rewind(said);
      while (std::fgets(line, sizeof line, said) != nullptr) {
        if (line[0] != '\n') Put(report.what, std::string_view(line).substr(0, std::strcspn(line, "\n")));
      }
    }
  }
  if (said != nullptr) std::fclose(said);
}

class SharedReport {
 public:
  SharedReport() {
    void* const memory = mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    report_ = memory == MAP_FAILED ? new Report : new (memory) Report;
  }
  Report* operator->() { return report_; }
  Report& operator*() { return *report_; }

 private:
  Report* report_;  // as long as the process
};

bool Counts(std::string_view kind, bool leaks_only) {
  return !kind.empty() && (!leaks_only || kind == "wrong answer" || kind == "invariant");
}

void RunSeeds(const SearchOptions& options, uint64_t first, WallClock::time_point start, Report& report) {
  Switch(options.mutant);
  auto next_word = start + std::chrono::seconds(10);
  for (uint64_t seed = first; options.seeds == 0 || seed < options.first_seed + options.seeds; ++seed) {
    const auto now = WallClock::now();
    if (options.longest.count() > 0 && now - start > options.longest) return;
    if (options.progress && now > next_word) {
      next_word = now + std::chrono::seconds(10);
      const double seconds = std::chrono::duration<double>(now - start).count();
      std::printf("  %lu seeds, %.1f million events, %.0f a second\n", report.seeds, static_cast<double>(report.events) / 1e6,
                  static_cast<double>(report.events) / seconds);
      std::fflush(stdout);
    }
    report.seed = seed;
    const Outcome outcome = Simulate(MakeScenario(seed));
    Add(report, outcome);
    if (!Counts(outcome.kind, options.leaks_only)) continue;
    report.found = true;
    Put(report.kind, outcome.kind);
    Put(report.what, outcome.what);
    return;
  }
}

}  // namespace

SearchResult Search(const SearchOptions& options) {
  static SharedReport report;
  *report = Report();
  const auto start = WallClock::now();
  uint64_t first = options.first_seed;
  do {
    report->found = false;
    InProcess(*report, [&] { RunSeeds(options, first, start, *report); });
    first = report->seed + 1;  // a process that ended is one that answers nobody
  } while (report->found && !Counts(report->kind, options.leaks_only));
  SearchResult result{.seeds = report->seeds,
                      .events = report->events,
                      .requests = report->requests,
                      .answered = report->answered,
                      .failed = report->failed,
                      .tokens = report->tokens,
                      .handoff_failures = report->handoff_failures,
                      .seconds = std::chrono::duration<double>(WallClock::now() - start).count(),
                      .found = {}};
  if (report->found) {
    result.found = Found{.seed = report->seed, .kind = report->kind, .what = report->what, .kept = {}};
    for (size_t i = 0; i < MakeScenario(report->seed).inputs.size(); ++i) result.found->kept.push_back(i);
  }
  return result;
}

std::optional<Found> TryOne(uint64_t seed, const std::vector<size_t>& keep, const Mutant* mutant) {
  static SharedReport report;
  *report = Report();
  InProcess(*report, [&] {
    Switch(mutant);
    const Outcome outcome = Simulate(MakeScenario(seed, keep));
    if (outcome.kind.empty()) return;
    report->found = true;
    Put(report->kind, outcome.kind);
    Put(report->what, outcome.what);
  });
  if (!report->found) return std::nullopt;
  return Found{.seed = seed, .kind = report->kind, .what = report->what, .kept = keep};
}

TrailResult TryTrail(const Trail& trail, const Mutant* mutant) {
  static SharedReport report;
  *report = Report();
  InProcess(*report, [&] {
    Switch(mutant);
    const Played played = Play(trail, &report->followed);
    Put(report->stopped, played.stopped);
    report->on_the_way = played.on_the_way;
    report->found = !played.outcome.kind.empty();
    Put(report->kind, played.outcome.kind);
    Put(report->what, played.outcome.what);
  });
  TrailResult result{.found = {}, .followed = report->followed, .stopped = report->stopped, .on_the_way = report->on_the_way};
  if (report->found) result.found = Found{.seed = 0, .kind = report->kind, .what = report->what, .kept = {}};
  return result;
}

Found Shrink(Found found, const Mutant* mutant) {
  // As in delta debugging (Zeller, Hildebrandt: "Simplifying and isolating failure-inducing input", 2002), complements alone.
  size_t chunk = std::max<size_t>(1, found.kept.size() / 2);
  while (true) {
    bool smaller = false;
    for (size_t first = 0; first < found.kept.size() && found.kept.size() > 1;) {
      std::vector<size_t> rest = found.kept;
      const auto from = rest.begin() + static_cast<ptrdiff_t>(first);
      rest.erase(from, from + static_cast<ptrdiff_t>(std::min(chunk, rest.size() - first)));
      std::optional<Found> again;
      if (!rest.empty()) again = TryOne(found.seed, rest, mutant);
      if (again.has_value() && again->kind == found.kind) {
        found = *std::move(again);
        smaller = true;
      } else {
        first += chunk;
      }
    }
    if (chunk == 1 && !smaller) return found;
    if (!smaller) chunk = std::max<size_t>(1, chunk / 2);
  }
}

}  // namespace cofferdam::sim
