// What the integrity checks cost: the same work with every check off, with `tags`, with `sampled` and with `full`, taking turns in
// one process. An arm is a pool and an engine; all share the model and its threads. In a round every arm, in a mode of its own,
// takes over the same prompts from a prefill worker's pages (copied, verified, adopted, content checked), decodes them as one
// batch, and lets them go (zeroed). Arms take turns prompt by prompt and step by step, so that what else the machine does
// disturbs all of them alike, and the modes move from arm to arm with every round, so that no mode has the better memory. Needs a
// build with fault points, which are what turns checks off:
//   cmake --preset faults && ninja -C build-faults checks_bench
//   build-faults/bin/checks_bench --model bench.gguf --batch 8 --context 1024 --rounds 20
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/cycles.h"
#include "base/faults.h"
#include "engine/engine.h"
#include "fabric/shared_region.h"
#include "runners.h"

namespace cofferdam {
namespace {

using Clock = std::chrono::steady_clock;
using engine::VerifyReads;

struct Options {
  std::string model;
  int threads = 2;
  int rounds = 20;
  uint32_t batch = 8, context = 1024, decoded = 32, page_tokens = 64, sampled_pages = 16;
};

constexpr std::array<const char*, 4> kModes = {"off", "tags", "sampled", "full"};

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double Quantile(std::vector<double> values, double at) {
  std::ranges::sort(values);
  return values[std::min(values.size() - 1, static_cast<size_t>(at * static_cast<double>(values.size())))];
}
double Median(const std::vector<double>& values) { return Quantile(values, 0.5); }

// A prompt as a prefill worker holds it.
struct Source {
  std::vector<TokenId> prompt;
  std::vector<kv::Digest128> identities;
  std::vector<std::vector<std::byte>> payloads;
  std::vector<kv::Seal> seals;
};

// What one round of one mode gave.
struct Round {
  size_t arm = 0;
  double handoff_seconds = 0, decode_seconds = 0;
  double check_seconds = 0;       // of the engine's thread, handoff and steps
  double step_check_seconds = 0;  // of the steps alone
  uint64_t attention_check_cycles = 0, step_cycles = 0;
  std::vector<double> step_seconds;
  double Total() const { return handoff_seconds + decode_seconds; }
};

// A pool and an engine.
class Arm {
 public:
  Arm(const Options& options, std::shared_ptr<const model::Model> model, model::Executor& executor)
      : options_(options), model_(std::move(model)), executor_(executor) {
    const uint64_t pages = options_.batch * (layout().PagesFor(options_.context + options_.decoded) + 1);
    auto memory = fabric::SharedRegion::CreatePrivate(pages * layout().page_bytes());
    CD_CHECK(memory.ok(), "there is memory for the pools");
    memory_ = *std::move(memory);
    pool_ = std::make_unique<kv::Pool>(layout(), memory_->bytes(), 7, kv::ReuseOrder::kFifo);
    engine_ = std::make_unique<engine::Engine>(
        engine::EngineOptions{.role = "bench", .context_tokens = options_.context + options_.decoded}, executor_, *pool_);
    pool_->ZeroWith(&zeroer_);
  }
  ~Arm() { pool_->ZeroWith(nullptr); }
  Arm(const Arm&) = delete;
  Arm& operator=(const Arm&) = delete;

  // REQUIRES: nothing is under way.
  void SetMode(size_t mode) { mode_ = mode; }

  // What a prefill worker would hold of a prompt.
  Source Compute(const std::vector<TokenId>& prompt) {
    Switch();
    Source source{.prompt = prompt,
                  .identities = kv::PageIdentities({}, layout(), {prompt.data(), prompt.size() - 1}),
                  .payloads = {},
                  .seals = {}};
    const SequenceId id = Start(Spec({prompt.begin(), prompt.end() - 1}, 0));
    engine_->Run(id);
    std::vector<engine::Event> events;
    while (engine_->HasWork()) engine_->Step(events);
    for (const engine::Event& event : events) {
      const auto* sealed = std::get_if<engine::SealedEvent>(&event);
      if (sealed == nullptr) continue;
      const auto bytes = pool_->Payload(sealed->page);
      source.payloads.emplace_back(bytes.begin(), bytes.end());
      source.seals.push_back(sealed->seal);
    }
    engine_->Release(id);
    Reclaim();
    return source;
  }

  void TakeOver(const Source& source) {
    Switch();
    const Clock::time_point start = Clock::now();
    const auto checked = engine_->counters().check_time;
    const SequenceId id = Start(Spec(source.prompt, options_.decoded));
    for (uint32_t i = 0; i < source.payloads.size(); ++i) {
      const auto view = engine_->PageAt(id, i);
      std::memcpy(view.payload.data(), source.payloads[i].data(), source.payloads[i].size());
      const kv::Arrival arrival = kv::VerifyArrived(layout(), view, source.seals[i], source.identities[i], source.seals[i].tokens);
      CD_CHECK(engine_->Adopt(id, i, std::get<kv::Verified>(arrival)).ok(), "a page is adopted");
    }
    CD_CHECK(engine_->CheckAdopted(id).ok(), "the content is right");
    engine_->Run(id);
    round_.handoff_seconds += SecondsSince(start);
    round_.check_seconds += std::chrono::duration<double>(engine_->counters().check_time - checked).count();
  }
  bool HasWork() const { return engine_->HasWork(); }
  void Step() {
    Switch();
    const auto checked = engine_->counters().check_time;
    const uint64_t attention = AttentionCheckCycles(), cycles = CycleCounter();
    const Clock::time_point start = Clock::now();
    events_.clear();
    engine_->Step(events_);
    engine_->Reclaim();
    round_.step_seconds.push_back(SecondsSince(start));
    round_.step_cycles += CycleCounter() - cycles;
    round_.attention_check_cycles += AttentionCheckCycles() - attention;
    const double in_checks = std::chrono::duration<double>(engine_->counters().check_time - checked).count();
    round_.step_check_seconds += in_checks;
    round_.check_seconds += in_checks;
    round_.decode_seconds += round_.step_seconds.back();
  }
  // Ends the round: all pages are back.
  Round Take() {
    Switch();
    Reclaim();
    return std::exchange(round_, {});
  }
  const engine::EngineCounters& counters() const { return engine_->counters(); }

 private:
  const kv::Layout& layout() const { return model_->layout(); }
  uint64_t AttentionCheckCycles() const {
#ifdef COFFERDAM_FAULTS
    return executor_.check_cycles();
#else
    return 0;
#endif
  }
  // From here on the process makes this arm's checks.
  void Switch() {
#ifdef COFFERDAM_FAULTS
    for (const Fault fault : {Fault::kTagsNotCompared, Fault::kIdentityNotChecked, Fault::kChecksumNotChecked,
                              Fault::kNoSealChecksum, Fault::kContentNotChecked, Fault::kNoZeroing, Fault::kRowsNotCompared,
                              Fault::kStatesNotCompared, Fault::kAdoptedNotCompared, Fault::kRestNotChecked}) {
      SetFault(fault, mode_ == 0);
    }
#endif
    constexpr std::array<VerifyReads::Mode, 4> kVerify = {VerifyReads::Mode::kTags, VerifyReads::Mode::kTags,
                                                          VerifyReads::Mode::kSampled, VerifyReads::Mode::kFull};
    engine_->SetVerifyReads({.mode = kVerify[mode_], .sampled_pages = options_.sampled_pages});
  }
  void Reclaim() {
    while (pool_->counts().free() < pool_->total_pages()) engine_->Reclaim();
  }
  engine::SequenceSpec Spec(std::vector<TokenId> tokens, uint32_t output) const {
    engine::SequenceSpec spec;
    spec.tokens = std::move(tokens);
    spec.max_output = output;
    if (output > 0) spec.sampling = model::SamplingParams{.temperature = 0};
    return spec;
  }
  SequenceId Start(engine::SequenceSpec spec) {
    return std::get<engine::Engine::Started>(engine_->Start(std::move(spec))).sequence;
  }

  const Options options_;
  size_t mode_ = 0;
  std::shared_ptr<const model::Model> model_;
  model::Executor& executor_;
  std::unique_ptr<fabric::SharedRegion> memory_;
  kv::Zeroer zeroer_{[] {}};
  std::unique_ptr<kv::Pool> pool_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<engine::Event> events_;
  Round round_;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    auto model = model::Model::Load({.path = options.model, .model_hash = "bench", .page_tokens = options.page_tokens});
    CD_CHECK(model.ok(), "the model loads");
    auto executor = model::Executor::Create(*model, {.threads = options.threads, .cpus = {}, .max_rows = 512});
    CD_CHECK(executor.ok(), "the executor starts");
    executor_ = *std::move(executor);
    for (size_t mode = 0; mode < kModes.size(); ++mode) arms_.push_back(std::make_unique<Arm>(options, *model, *executor_));
    arms_[0]->SetMode(1);
    source_ = arms_[0]->Compute(oracle::RandomTokens((*model)->info().vocabulary, options.context, 1));
  }

  // One round of every mode.
  std::array<Round, kModes.size()> Run() {
    const uint32_t shift = round_++;
    for (size_t i = 0; i < arms_.size(); ++i) arms_[i]->SetMode((i + shift) % kModes.size());
    for (uint32_t i = 0; i < options_.batch; ++i) InTurn([&](Arm& arm) { arm.TakeOver(source_); });
    while (arms_[0]->HasWork()) InTurn([](Arm& arm) { arm.Step(); });
    std::array<Round, kModes.size()> round;
    for (size_t i = 0; i < arms_.size(); ++i) {
      round[(i + shift) % kModes.size()] = arms_[i]->Take();
      round[(i + shift) % kModes.size()].arm = i;
    }
    return round;
  }
  // Of all arms.
  kv::CheckCounts checks() const {
    kv::CheckCounts all;
    for (const auto& arm : arms_) all += arm->counters().checks;
    return all;
  }

 private:
  // Who comes first changes with every turn, and so does the direction.
  template <typename What>
  void InTurn(What what) {
    const uint32_t turn = turn_++;
    for (uint32_t i = 0; i < kModes.size(); ++i) {
      const uint32_t at = turn % 2 == 0 ? i : static_cast<uint32_t>(kModes.size()) - 1 - i;
      what(*arms_[(at + turn / 2) % kModes.size()]);
    }
  }

  const Options options_;
  std::unique_ptr<model::Executor> executor_;
  std::vector<std::unique_ptr<Arm>> arms_;
  Source source_;
  uint32_t turn_ = 0, round_ = 0;
};

struct Interval {
  double value, low, high;
};

// `of` takes two lists of rounds, by index; the interval resamples rounds in pairs.
template <typename Of>
Interval Bootstrap(size_t rounds, Of of) {
  std::vector<size_t> all(rounds), sample(rounds);
  std::iota(all.begin(), all.end(), size_t{0});
  std::mt19937 random(1);
  std::uniform_int_distribution<size_t> pick(0, rounds - 1);
  std::vector<double> values;
  for (int i = 0; i < 4000; ++i) {
    for (size_t& at : sample) at = pick(random);
    values.push_back(of(sample));
  }
  return {of(all), Quantile(values, 0.025), Quantile(values, 0.975)};
}

void Print(const char* what, const Interval& cost) {
  std::printf("  %-30s %+6.2f%%  [%+.2f, %+.2f]\n", what, cost.value, cost.low, cost.high);
}

using Rounds = std::array<std::vector<Round>, kModes.size()>;

// What an arm's memory adds to the logarithm of what `of` says of a round: pools lie better or worse, by more than a check costs,
// and every mode was as often in every arm.
template <typename Of>
std::array<double, kModes.size()> EffectsOfArms(const Rounds& rounds, Of of) {
  std::array<double, kModes.size()> sums{}, effects{};
  std::array<size_t, kModes.size()> counts{};
  for (const std::vector<Round>& mode : rounds) {
    for (const Round& round : mode) {
      sums[round.arm] += std::log(of(round));
      ++counts[round.arm];
    }
  }
  for (size_t arm = 0; arm < kModes.size(); ++arm) effects[arm] = sums[arm] / static_cast<double>(std::max<size_t>(1, counts[arm]));
  return effects;
}

// The median over rounds of what `of` says of a round, `mode` against off, in percent, less what the arms are to blame for.
template <typename Of>
void Report(const char* what, const Rounds& rounds, size_t mode, Of of) {
  const auto effects = EffectsOfArms(rounds, of);
  const auto log_of = [&](const Round& round) { return std::log(of(round)) - effects[round.arm]; };
  std::vector<double> costs;
  for (size_t i = 0; i < rounds[0].size(); ++i) costs.push_back(std::expm1(log_of(rounds[mode][i]) - log_of(rounds[0][i])) * 100);
  Print(what, Bootstrap(costs.size(), [&](const std::vector<size_t>& sample) {
          std::vector<double> values;
          for (const size_t i : sample) values.push_back(costs[i]);
          return Median(std::move(values));
        }));
}

// The 99th percentile of all steps of all rounds: one round has too few.
void ReportTail(const std::vector<Round>& off, const std::vector<Round>& on) {
  auto tail = [](const std::vector<Round>& rounds, const std::vector<size_t>& sample) {
    std::vector<double> steps;
    for (const size_t i : sample) steps.insert(steps.end(), rounds[i].step_seconds.begin(), rounds[i].step_seconds.end());
    return Quantile(std::move(steps), 0.99);
  };
  Print("inter-token latency, p99",
        Bootstrap(off.size(), [&](const std::vector<size_t>& sample) { return (tail(on, sample) / tail(off, sample) - 1) * 100; }));
}

void ReportCycles(const std::vector<Round>& rounds, int threads) {
  double steps = 0, in_checks = 0, all = 0, all_checks = 0, attention = 0, step_cycles = 0;
  for (const Round& round : rounds) {
    steps += round.decode_seconds;
    in_checks += round.step_check_seconds;
    all += round.Total();
    all_checks += round.check_seconds;
    attention += static_cast<double>(round.attention_check_cycles);
    step_cycles += static_cast<double>(round.step_cycles);
  }
  const double beside = attention / (step_cycles * threads);
  std::printf("  %-30s %6.3f%% (in attention %.3f%%); of all time with handoff %.3f%%\n", "cycles of a step in checks",
              (in_checks / steps + beside) * 100, beside * 100, (all_checks / all + beside * steps / all) * 100);
}

void ReportMode(size_t mode, const Rounds& rounds, int threads) {
  std::printf("%s:\n", kModes[mode]);
  Report("time with handoff", rounds, mode, [](const Round& r) { return r.Total(); });
  Report("inter-token latency, median", rounds, mode, [](const Round& r) { return Median(r.step_seconds); });
  ReportTail(rounds[0], rounds[mode]);
  Report("handoff alone", rounds, mode, [](const Round& r) { return r.handoff_seconds; });
  ReportCycles(rounds[mode], threads);
}

int Main(const Options& options) {
#ifndef COFFERDAM_FAULTS
  std::fprintf(stderr, "this build has no fault points, so that no check can be turned off: use cmake --preset faults\n");
  return 2;
#endif
  Bench bench(options);
  for (size_t i = 0; i < kModes.size(); ++i) bench.Run();  // warms up
  Rounds rounds;
  for (int i = 0; i < options.rounds; ++i) {
    std::array<Round, kModes.size()> round = bench.Run();
    for (size_t mode = 0; mode < kModes.size(); ++mode) rounds[mode].push_back(std::move(round[mode]));
  }
  std::vector<double> steps, totals;
  for (const Round& round : rounds[0]) {
    steps.push_back(Median(round.step_seconds));
    totals.push_back(round.Total());
  }
  std::printf("batch %u, context %u, %d rounds: off takes %.2f ms a step, %.1f tokens a second with handoff\n", options.batch,
              options.context, options.rounds, Median(steps) * 1e3, options.batch * options.decoded / Median(totals));
  for (size_t mode = 1; mode < kModes.size(); ++mode) ReportMode(mode, rounds, options.threads);
  const kv::CheckCounts checks = bench.checks();
  for (const kv::CheckKind kind : kv::kAllCheckKinds) {
    if (kind == kv::CheckKind::kSeal || kind == kv::CheckKind::kScrub) continue;  // the engine makes none of these here
    std::printf("%s: %llu made, %llu failed\n", std::string(kv::ToString(kind)).c_str(),
                static_cast<unsigned long long>(checks[kind].made), static_cast<unsigned long long>(checks[kind].failed));
  }
  return 0;
}

}  // namespace
}  // namespace cofferdam

int main(int argc, char** argv) {
  cofferdam::Options options;
  CLI::App app{"What the integrity checks cost"};
  app.add_option("--model", options.model, "a GGUF file, e.g. of make_model")->required();
  app.add_option("--threads", options.threads);
  app.add_option("--rounds", options.rounds, "pairs; a multiple of 4 has every mode in every arm as often")
      ->check(CLI::Range(1, 1000));
  app.add_option("--batch", options.batch)->check(CLI::Range(1, 256));
  app.add_option("--context", options.context, "tokens of each prompt")->check(CLI::Range(2, 1 << 20));
  app.add_option("--decoded", options.decoded, "tokens a sequence and round")->check(CLI::Range(2, 4096));
  app.add_option("--page-tokens", options.page_tokens);
  app.add_option("--sampled-pages", options.sampled_pages, "of the mode `sampled`");
  CLI11_PARSE(app, argc, argv);
  return cofferdam::Main(options);
}
