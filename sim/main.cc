// cofferdam-sim: plays random scenarios out on the production state machines, and looks for wrong answers.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/scenario.h"
#include "sim/search.h"
#include "sim/trail.h"
#include "sim/world.h"

namespace cofferdam::sim {
namespace {

constexpr uint64_t kMutantSeeds = 10'000;  // within which each is found
constexpr uint64_t kCoveredSeeds = 200;    // in which other layers cover for what is left out

struct Arguments {
  uint64_t seeds = 0, first_seed = 1, seed = 0;
  double minutes = 0;
  std::string mutant, trail;
  std::vector<size_t> keep;
  bool all_mutants = false, list = false, trace = false;
};

void PrintFound(const Found& found, const Mutant* mutant) {
  const Scenario all = MakeScenario(found.seed);
  const bool shrunk = found.kept.size() < all.inputs.size();
  std::printf("\nFOUND in seed %lu: %s: %s\n", found.seed, found.kind.c_str(), found.what.c_str());
  std::printf("It takes %zu of %zu inputs:\n%s", found.kept.size(), all.inputs.size(),
              MakeScenario(found.seed, found.kept).Describe().c_str());
  std::printf("Again: build/cofferdam-sim --seed %lu%s%s\n", found.seed,
              shrunk ? absl::StrCat(" --keep ", absl::StrJoin(found.kept, ",")).c_str() : "",
              mutant == nullptr ? "" : absl::StrCat(" --mutant ", std::string(mutant->name)).c_str());
}

void PrintResult(const SearchResult& result) {
  std::printf("%lu seeds: %lu requests, %lu answered, %lu not, %lu tokens, %lu handoffs that failed\n", result.seeds,
              result.requests, result.answered, result.failed, result.tokens, result.handoff_failures);
  std::printf("%lu events in %.1f s: %.0f a second\n", result.events, result.seconds,
              static_cast<double>(result.events) / result.seconds);
}

int RunAllMutants() {
  bool as_expected = true;
  std::printf("%-32s %-10s %7s %9s  %s\n", "mutant", "expected", "seeds", "seconds", "found");
  for (const Mutant& mutant : Mutants()) {
    const SearchResult result = Search(
        {.seeds = mutant.found ? kMutantSeeds : kCoveredSeeds, .longest = {}, .mutant = &mutant, .leaks_only = !mutant.found});
    const bool right = result.found.has_value() == mutant.found;
    as_expected = as_expected && right;
    const uint64_t seeds = result.found.has_value() ? result.found->seed : result.seeds;
    std::printf(
        "%-32s %-10s %7lu %9.2f  %s%s\n", std::string(mutant.name).c_str(), mutant.found ? "found" : "covered", seeds,
        result.seconds,
        result.found.has_value() ? absl::StrCat(result.found->kind, ": ", result.found->what).substr(0, 110).c_str() : "nothing",
        right ? "" : "  <-- NOT AS EXPECTED");
    std::fflush(stdout);
  }
  return as_expected ? 0 : 1;
}

int Replay(const Arguments& arguments, const Mutant* mutant) {
  Switch(mutant);
  const Scenario scenario = MakeScenario(arguments.seed, arguments.keep);
  std::printf("%s", scenario.Describe().c_str());
  const Outcome outcome = World(scenario, [](const std::string& line) {
                            std::printf("%s\n", line.c_str());
                            std::fflush(stdout);
                          }).Run();
  std::printf("%lu events, %lu requests, %lu answered; %s\n", outcome.events, outcome.requests, outcome.answered,
              outcome.kind.empty() ? "nothing was found" : absl::StrCat(outcome.kind, ": ", outcome.what).c_str());
  return outcome.kind.empty() ? 0 : 1;
}

// 0: as expected, which is that something is found with a mutant that must be, and all of the trail could happen until then.
int PlayTrail(const std::string& path, const Mutant* mutant, bool trace) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const absl::StatusOr<Trail> trail = ParseTrail(text.str());
  if (!file || !trail.ok()) {
    std::fprintf(stderr, "%s is no trail: %s\n", path.c_str(),
                 file ? std::string(trail.status().message()).c_str() : "it cannot be read");
    return 2;
  }
  if (trace) {
    Switch(mutant);
    uint64_t followed = 0;
    Play(*trail, &followed, [](const std::string& line) {
      std::printf("%s\n", line.c_str());
      std::fflush(stdout);
    });
  }
  const TrailResult result = TryTrail(*trail, mutant);
  std::printf("%zu of %zu actions%s%s\n", result.followed, trail->lines.size(), result.stopped.empty() ? "" : "; ",
              result.stopped.c_str());
  std::printf("%s\n", result.found.has_value() ? absl::StrCat("FOUND: ", result.found->kind, ": ", result.found->what).c_str()
                                               : "nothing was found");
  if (mutant == nullptr || !mutant->found) return result.found.has_value() ? 1 : 0;
  return result.found.has_value() && (result.stopped.empty() || result.on_the_way) ? 0 : 1;
}

int SearchSeeds(const Arguments& arguments, const Mutant* mutant) {
  const auto longest = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(arguments.minutes * 60));
  const uint64_t seeds = arguments.seeds > 0 || arguments.minutes > 0 ? arguments.seeds : kMutantSeeds;
  const SearchResult result = Search(
      {.first_seed = arguments.first_seed, .seeds = seeds, .longest = longest, .mutant = mutant, .progress = mutant == nullptr});
  PrintResult(result);
  if (result.found.has_value()) PrintFound(Shrink(*result.found, mutant), mutant);
  if (mutant == nullptr) return result.found.has_value() ? 1 : 0;
  return result.found.has_value() == mutant->found ? 0 : 1;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Plays random scenarios out on the production state machines, engine and pool, in virtual time, and looks for answers "
      "that are wrong, invariants that break, requests that never end and pages that are lost.");
  app.add_option("--seeds", arguments.seeds, "How many seeds are run (default: 10000, or what --minutes allows)");
  app.add_option("--minutes", arguments.minutes, "How long at most");
  app.add_option("--first-seed", arguments.first_seed, "The first of them")->capture_default_str();
  app.add_option("--seed", arguments.seed, "Runs this one alone and says what happens");
  app.add_option("--keep", arguments.keep, "With --seed: only these of its inputs")->delimiter(',');
  app.add_option("--mutant", arguments.mutant, "Leaves a rule out of the code; exits with 1 when that is not found");
  app.add_option("--trail", arguments.trail,
                 "Plays an order of events that spin found in spec/: a file with the lines that it prints");
  app.add_flag("--trace", arguments.trace, "With --trail: says what happens");
  app.add_flag("--mutants", arguments.all_mutants, "Looks for all of them; exits with 1 when one is not as expected");
  app.add_flag("--list", arguments.list, "Lists them");
  CLI11_PARSE(app, argc, argv);
  if (arguments.list) {
    for (const Mutant& mutant : Mutants()) std::printf("%s\n", std::string(mutant.name).c_str());
    return 0;
  }
  const Mutant* const mutant = arguments.mutant.empty() ? nullptr : MutantNamed(arguments.mutant);
  if (mutant == nullptr && !arguments.mutant.empty()) {
    std::fprintf(stderr, "there is no mutant '%s'; --list names them\n", arguments.mutant.c_str());
    return 2;
  }
  if (!arguments.trail.empty()) return PlayTrail(arguments.trail, mutant, arguments.trace);
  if (arguments.all_mutants) return RunAllMutants();
  if (arguments.seed > 0) return Replay(arguments, mutant);
  return SearchSeeds(arguments, mutant);
}

}  // namespace
}  // namespace cofferdam::sim

int main(int argc, char** argv) { return cofferdam::sim::Main(argc, argv); }
