// What the integrity checks cost: one engine, the same work with every check off, with `tags`, and with `full`, taking turns in one
// process. A round takes over prompts from a prefill worker's pages (copied, verified, adopted, content checked), decodes them as
// one batch, and lets them go (zeroed). Needs a build with fault points, which are what turns checks off:
//   cmake --preset faults && ninja -C build-faults checks_bench
//   build-faults/bin/checks_bench --model bench.gguf --batch 8 --context 1024 --rounds 20
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/faults.h"
#include "engine/engine.h"
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

// What one round of one mode gave.
struct Round {
  double handoff_seconds = 0, decode_seconds = 0;
  std::vector<double> step_seconds;
  double Total() const { return handoff_seconds + decode_seconds; }
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    auto model = model::Model::Load({.path = options.model, .model_hash = "bench", .page_tokens = options.page_tokens});
    CD_CHECK(model.ok(), "the model loads");
    model_ = *model;
    auto executor = model::Executor::Create(model_, {.threads = options.threads, .cpus = {}, .max_rows = 512});
    CD_CHECK(executor.ok(), "the executor starts");
    executor_ = *std::move(executor);
    const uint64_t pages = options.batch * (layout().PagesFor(options.context + options.decoded) + 1);
    memory_.resize(pages * layout().page_bytes() + 64);
    std::byte* base = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
    pool_ = std::make_unique<kv::Pool>(layout(), std::span(base, pages * layout().page_bytes()), 7, kv::ReuseOrder::kFifo);
    engine_ = std::make_unique<engine::Engine>(
        engine::EngineOptions{.role = "bench", .context_tokens = options.context + options.decoded}, *executor_, *pool_);
    pool_->ZeroWith(&zeroer_);
    prompt_ = oracle::RandomTokens(model_->info().vocabulary, options.context, 1);
    identities_ = kv::PageIdentities({}, layout(), {prompt_.data(), prompt_.size() - 1});
    ComputeSource();
  }
  ~Bench() { pool_->ZeroWith(nullptr); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Round Run(size_t mode) {
    Set(mode);
    Round round;
    const Clock::time_point start = Clock::now();
    std::vector<SequenceId> ids;
    for (uint32_t i = 0; i < options_.batch; ++i) ids.push_back(TakeOver());
    round.handoff_seconds = SecondsSince(start);
    const Clock::time_point decode = Clock::now();
    std::vector<engine::Event> events;
    while (engine_->HasWork()) {
      const Clock::time_point step = Clock::now();
      events.clear();
      engine_->Step(events);
      engine_->Reclaim();
      round.step_seconds.push_back(SecondsSince(step));
    }
    round.decode_seconds = SecondsSince(decode);
    while (pool_->counts().free() < pool_->total_pages()) engine_->Reclaim();
    return round;
  }
  const engine::EngineCounters& counters() const { return engine_->counters(); }

 private:
  const kv::Layout& layout() const { return model_->layout(); }

  static void Set([[maybe_unused]] size_t mode, [[maybe_unused]] Fault fault) {
#ifdef COFFERDAM_FAULTS
    SetFault(fault, mode == 0);
#endif
  }
  void Set(size_t mode) {
    for (const Fault fault : {Fault::kTagsNotCompared, Fault::kIdentityNotChecked, Fault::kChecksumNotChecked,
                              Fault::kNoSealChecksum, Fault::kContentNotChecked, Fault::kNoZeroing, Fault::kRowsNotCompared,
                              Fault::kStatesNotCompared, Fault::kAdoptedNotCompared, Fault::kRestNotChecked}) {
      Set(mode, fault);
    }
    constexpr std::array<VerifyReads::Mode, 4> kVerify = {VerifyReads::Mode::kTags, VerifyReads::Mode::kTags,
                                                          VerifyReads::Mode::kSampled, VerifyReads::Mode::kFull};
    engine_->SetVerifyReads({.mode = kVerify[mode], .sampled_pages = options_.sampled_pages});
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
  // What a prefill worker would hold.
  void ComputeSource() {
    const SequenceId id = Start(Spec({prompt_.begin(), prompt_.end() - 1}, 0));
    engine_->Run(id);
    std::vector<engine::Event> events;
    while (engine_->HasWork()) engine_->Step(events);
    for (const engine::Event& event : events) {
      if (const auto* sealed = std::get_if<engine::SealedEvent>(&event)) {
        const auto bytes = pool_->Payload(sealed->page);
        source_.emplace_back(bytes.begin(), bytes.end());
        seals_.push_back(sealed->seal);
      }
    }
    engine_->Release(id);
    while (pool_->counts().free() < pool_->total_pages()) engine_->Reclaim();
  }
  SequenceId TakeOver() {
    const SequenceId id = Start(Spec(prompt_, options_.decoded));
    for (uint32_t i = 0; i < source_.size(); ++i) {
      const auto view = engine_->PageAt(id, i);
      std::memcpy(view.payload.data(), source_[i].data(), source_[i].size());
      const kv::Arrival arrival = kv::VerifyArrived(layout(), view, seals_[i], identities_[i], seals_[i].tokens);
      CD_CHECK(engine_->Adopt(id, i, std::get<kv::Verified>(arrival)).ok(), "a page is adopted");
    }
    CD_CHECK(engine_->CheckAdopted(id).ok(), "the content is right");
    engine_->Run(id);
    return id;
  }

  const Options options_;
  std::shared_ptr<const model::Model> model_;
  std::unique_ptr<model::Executor> executor_;
  std::vector<std::byte> memory_;
  kv::Zeroer zeroer_{[] {}};
  std::unique_ptr<kv::Pool> pool_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<TokenId> prompt_;
  std::vector<kv::Digest128> identities_;
  std::vector<std::vector<std::byte>> source_;
  std::vector<kv::Seal> seals_;
};

// The cost of `mode` over `off` in percent, by `of` of each round; the interval resamples rounds in pairs.
template <typename Of>
void Report(const char* what, const std::vector<Round>& off, const std::vector<Round>& on, Of of) {
  std::vector<double> costs;
  for (size_t i = 0; i < off.size(); ++i) costs.push_back((of(on[i]) / of(off[i]) - 1) * 100);
  std::mt19937 random(1);
  std::uniform_int_distribution<size_t> pick(0, costs.size() - 1);
  std::vector<double> medians;
  for (int i = 0; i < 4000; ++i) {
    std::vector<double> sample;
    for (size_t k = 0; k < costs.size(); ++k) sample.push_back(costs[pick(random)]);
    medians.push_back(Median(sample));
  }
  std::printf("  %-30s %+6.2f%%  [%+.2f, %+.2f]\n", what, Median(costs), Quantile(medians, 0.025), Quantile(medians, 0.975));
}

int Main(const Options& options) {
#ifndef COFFERDAM_FAULTS
  std::fprintf(stderr, "this build has no fault points, so that no check can be turned off: use cmake --preset faults\n");
  return 2;
#endif
  Bench bench(options);
  std::array<std::vector<Round>, kModes.size()> rounds;
  for (int round = -1; round < options.rounds; ++round) {  // the first is a warm-up
    for (size_t i = 0; i < kModes.size(); ++i) {
      const size_t mode = (i + static_cast<size_t>(round + 1)) % kModes.size();  // each comes first in turn
      Round result = bench.Run(mode);
      if (round >= 0) rounds[mode].push_back(std::move(result));
    }
  }
  std::vector<double> steps, totals;
  for (const Round& round : rounds[0]) {
    steps.push_back(Median(round.step_seconds));
    totals.push_back(round.Total());
  }
  std::printf("batch %u, context %u, %d rounds: off takes %.2f ms a step, %.1f tokens a second with handoff\n", options.batch,
              options.context, options.rounds, Median(steps) * 1e3, options.batch * options.decoded / Median(totals));
  for (size_t mode = 1; mode < kModes.size(); ++mode) {
    std::printf("%s:\n", kModes[mode]);
    Report("time with handoff", rounds[0], rounds[mode], [](const Round& r) { return r.Total(); });
    Report("inter-token latency, median", rounds[0], rounds[mode], [](const Round& r) { return Median(r.step_seconds); });
    Report("inter-token latency, p99", rounds[0], rounds[mode], [](const Round& r) { return Quantile(r.step_seconds, 0.99); });
    Report("handoff alone", rounds[0], rounds[mode], [](const Round& r) { return r.handoff_seconds; });
  }
  for (const kv::CheckKind kind : kv::kAllCheckKinds) {
    if (kind == kv::CheckKind::kSeal || kind == kv::CheckKind::kScrub) continue;  // the engine makes none of these here
    const auto& count = bench.counters().checks[kind];
    std::printf("%s: %llu made, %llu failed\n", std::string(kv::ToString(kind)).c_str(),
                static_cast<unsigned long long>(count.made), static_cast<unsigned long long>(count.failed));
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
  app.add_option("--rounds", options.rounds, "pairs")->check(CLI::Range(1, 1000));
  app.add_option("--batch", options.batch)->check(CLI::Range(1, 256));
  app.add_option("--context", options.context, "tokens of each prompt")->check(CLI::Range(2, 1 << 20));
  app.add_option("--decoded", options.decoded, "tokens a sequence and round")->check(CLI::Range(2, 4096));
  app.add_option("--page-tokens", options.page_tokens);
  app.add_option("--sampled-pages", options.sampled_pages, "of the mode `sampled`");
  CLI11_PARSE(app, argc, argv);
  return cofferdam::Main(options);
}
