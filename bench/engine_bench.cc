// Our executor against libllama's own inference on one file, in one process, taking turns (A B A B), so that whatever
// else the machine does falls on both. Prints medians, their ratio, and a 95% bootstrap interval of the ratio.
//   engine_bench --model bench.gguf --threads 2
#include <llama.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <vector>

#include "base/check.h"
#include "runners.h"

namespace cofferdam {
namespace {

using oracle::Tokens;

struct Options {
  std::string model;
  int threads = 2;
  int rounds = 9;
  uint32_t context = 512;  // before decoding
  uint32_t decoded = 24;   // tokens a round
  uint32_t prompt = 2048;
  uint32_t chunk = 512;
  bool flash = true;  // libllama's attention
  std::string only;
};

uint32_t ContextTokens(const Options& o) {
  return std::max(o.prompt, o.context + o.decoded * (static_cast<uint32_t>(o.rounds) + 1)) + 64;
}

// Wall time; or, with one thread, the processor time of the process, which a busy machine does not stretch (nothing else
// runs in the process meanwhile, since the resting side's pool is paused or has no threads).
double Seconds(bool processor_time) {
  timespec now{};
  clock_gettime(processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// libllama as llama-bench runs it: its own thread pool, f16 cache, batches of `chunk`.
class Rival {
 public:
  explicit Rival(const Options& options) : options_(options) {
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
          if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
    model_ = llama_model_load_from_file(options.model.c_str(), llama_model_default_params());
    CD_CHECK(model_ != nullptr, "libllama loads the model");
    llama_context_params params = llama_context_default_params();
    params.n_ctx = ContextTokens(options);
    params.n_batch = params.n_ubatch = options.chunk;
    params.n_threads = params.n_threads_batch = options.threads;
    params.flash_attn_type = options.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context_ = llama_init_from_model(model_, params);
    CD_CHECK(context_ != nullptr, "libllama makes a context");
    ggml_threadpool_params pool = ggml_threadpool_params_default(options.threads);
    pool_ = ggml_threadpool_new(&pool);
    llama_attach_threadpool(context_, pool_, pool_);
    ggml_threadpool_pause(pool_);
  }
  ~Rival() {
    llama_free(context_);
    ggml_threadpool_free(pool_);
    llama_model_free(model_);
  }
  Rival(const Rival&) = delete;
  Rival& operator=(const Rival&) = delete;

  void Prefill(const Tokens& tokens) {
    llama_memory_clear(llama_get_memory(context_), false);
    for (size_t from = 0; from < tokens.size(); from += options_.chunk) {
      const size_t count = std::min<size_t>(options_.chunk, tokens.size() - from);
      CD_CHECK(llama_decode(context_,
                            llama_batch_get_one(const_cast<llama_token*>(tokens.data()) + from, static_cast<int32_t>(count))) == 0,
               "decodes");
    }
    llama_synchronize(context_);
  }
  void Decode(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      llama_token token = static_cast<llama_token>(i + 5);
      CD_CHECK(llama_decode(context_, llama_batch_get_one(&token, 1)) == 0, "decodes");
      sink_ += llama_get_logits_ith(context_, -1)[0];
    }
  }
  void Wake() { ggml_threadpool_resume(pool_); }
  void Sleep() { ggml_threadpool_pause(pool_); }

 private:
  const Options options_;
  llama_model* model_;
  llama_context* context_;
  ggml_threadpool_t pool_;
  float sink_ = 0;
};

class Own {
 public:
  explicit Own(const Options& options)
      : options_(options),
        ours_(options.model, {.threads = options.threads, .max_rows = options.chunk}, 1, ContextTokens(options)) {}
  void Prefill(const Tokens& tokens) {
    ours_.Reset();
    for (size_t from = 0; from < tokens.size(); from += options_.chunk) {
      const size_t to = std::min(from + options_.chunk, tokens.size());
      ours_.Step({{.sequence = 0,
                   .tokens = {tokens.begin() + static_cast<ptrdiff_t>(from), tokens.begin() + static_cast<ptrdiff_t>(to)}}});
    }
  }
  void Decode(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) ours_.Step({{.sequence = 0, .tokens = {static_cast<TokenId>(i + 5)}}});
  }

 private:
  const Options options_;
  oracle::Ours ours_;
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Tokens a second of both, and how many times faster ours is; the interval resamples rounds in pairs.
void Report(const char* what, double tokens, const std::vector<double>& ours, const std::vector<double>& theirs) {
  std::mt19937 random(1);
  std::uniform_int_distribution<size_t> pick(0, ours.size() - 1);
  std::vector<double> ratios;
  for (int i = 0; i < 2000; ++i) {
    std::vector<double> a, b;
    for (size_t k = 0; k < ours.size(); ++k) {
      const size_t round = pick(random);
      a.push_back(ours[round]);
      b.push_back(theirs[round]);
    }
    ratios.push_back(Median(b) / Median(a));
  }
  std::ranges::sort(ratios);
  std::printf("%-28s ours %8.1f tok/s   libllama %8.1f tok/s   ratio %.3f  [%.3f, %.3f]  (best: %.1f, %.1f)\n", what,
              tokens / Median(ours), tokens / Median(theirs), Median(theirs) / Median(ours), ratios[49], ratios[1949],
              tokens / std::ranges::min(ours), tokens / std::ranges::min(theirs));
  std::fflush(stdout);
}

int Main(const Options& o) {
  Rival rival(o);
  Own own(o);
  const Tokens prompt = oracle::RandomTokens(30000, o.prompt, 1);
  const Tokens context(prompt.begin(), prompt.begin() + o.context);
  const bool processor_time = o.threads == 1;
  std::printf("%d threads, %s time\n", o.threads, processor_time ? "processor" : "wall");
  auto timed = [&](auto&& action) {
    const double start = Seconds(processor_time);
    action();
    return Seconds(processor_time) - start;
  };
  auto interleave = [&](const char* what, double tokens, auto&& action) {
    std::vector<double> ours, theirs;
    for (int round = -1; round < o.rounds; ++round) {  // the first is a warm-up
      const double a = timed([&] { action(own); });
      rival.Wake();
      const double b = timed([&] { action(rival); });
      rival.Sleep();
      if (round < 0) continue;
      ours.push_back(a);
      theirs.push_back(b);
    }
    Report(what, tokens, ours, theirs);
  };
  if (o.only != "prefill") {
    // The context grows by what each round decodes, on both sides alike.
    own.Prefill(context);
    rival.Wake();
    rival.Prefill(context);
    rival.Sleep();
    interleave("decode, one stream", o.decoded, [&](auto& engine) { engine.Decode(o.decoded); });
  }
  if (o.only != "decode") {
    interleave("prefill", o.prompt, [&](auto& engine) { engine.Prefill(prompt); });
  }
  return 0;
}

}  // namespace
}  // namespace cofferdam

int main(int argc, char** argv) {
  cofferdam::Options options;
  CLI::App app{"Our executor against libllama on one file"};
  app.add_option("--model", options.model, "a GGUF file, e.g. of make_model")->required();
  app.add_option("--threads", options.threads);
  app.add_option("--rounds", options.rounds);
  app.add_option("--context", options.context, "tokens before decoding");
  app.add_option("--decoded", options.decoded, "tokens a round");
  app.add_option("--prompt", options.prompt, "tokens of a prefill");
  app.add_option("--chunk", options.chunk, "tokens a batch");
  app.add_option("--flash", options.flash, "libllama's flash attention");
  app.add_option("--only", options.only, "decode or prefill");
  CLI11_PARSE(app, argc, argv);
  if (options.context > options.prompt) options.prompt = options.context;
  return cofferdam::Main(options);
}
