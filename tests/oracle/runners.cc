#include "runners.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace cofferdam::oracle {
namespace {

void Quiet(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

}  // namespace

std::optional<std::string> StoriesPath() {
  const char* folder = std::getenv("COFFERDAM_TEST_MODELS");
  if (folder == nullptr) return std::nullopt;
  std::string path = absl::StrCat(folder, "/stories260K.gguf");
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

std::string VocabularyPath(const std::string& name) { return absl::StrCat(COFFERDAM_LLAMA_MODELS, "/ggml-vocab-", name, ".gguf"); }

std::string TemporaryPath(const std::string& name) {
  return absl::StrCat(std::filesystem::temp_directory_path().string(), "/cofferdam-oracle-", getpid(), "-", name, ".gguf");
}

Tokens RandomTokens(uint32_t vocabulary, size_t count, uint64_t seed) {
  Tokens tokens;
  uint64_t state = seed * 6364136223846793005u + 1442695040888963407u;
  for (size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<TokenId>((state >> 33) % vocabulary));
  }
  return tokens;
}

TokenId ArgMax(std::span<const float> logits) { return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin()); }

double RelativeDifference(std::span<const float> a, std::span<const float> b) {
  CD_CHECK(a.size() == b.size(), "logits of one model have one size");
  double difference = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = std::isfinite(a[i]) ? std::max(difference, std::abs(double{a[i]} - double{b[i]})) : INFINITY;
    largest = std::max(largest, std::abs(double{b[i]}));
  }
  return difference / largest;
}

Libllama::Libllama(const std::string& path, Options options) {
  llama_log_set(Quiet, nullptr);
  llama_model_params model = llama_model_default_params();
  model.n_gpu_layers = 0;
  model.use_extra_bufts = options.repack;
  model_.reset(llama_model_load_from_file(path.c_str(), model));
  CD_CHECK(model_ != nullptr, "libllama loads the test's model");
  llama_context_params context = llama_context_default_params();
  context.n_ctx = options.context;
  context.n_batch = context.n_ubatch = 512;
  context.n_threads = context.n_threads_batch = options.threads;
  context.flash_attn_type = options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  context.type_k = context.type_v = GGML_TYPE_F16;
  context_.reset(llama_init_from_model(model_.get(), context));
  CD_CHECK(context_ != nullptr, "libllama makes a context");
}

uint32_t Libllama::vocabulary() const { return static_cast<uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_.get()))); }

std::vector<float> Libllama::Prefill(const Tokens& tokens) {
  llama_memory_clear(llama_get_memory(context_.get()), true);
  const auto count = static_cast<int32_t>(tokens.size());
  llama_batch batch = llama_batch_init(count, 0, 1);
  batch.n_tokens = count;
  for (int32_t i = 0; i < count; ++i) {
    batch.token[i] = tokens[static_cast<size_t>(i)];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  CD_CHECK(llama_decode(context_.get(), batch) == 0, "libllama decodes");
  llama_batch_free(batch);
  position_ = count;
  std::vector<float> logits;
  for (int32_t i = 0; i < count; ++i) {
    const float* row = llama_get_logits_ith(context_.get(), i);
    logits.insert(logits.end(), row, row + vocabulary());
  }
  return logits;
}

std::span<const float> Libllama::Next(TokenId token) {
  CD_CHECK(llama_decode(context_.get(), llama_batch_get_one(&token, 1)) == 0, "libllama decodes");
  ++position_;
  return {llama_get_logits_ith(context_.get(), -1), vocabulary()};
}

Tokens Libllama::Greedy(const Tokens& prompt, size_t count, std::vector<float>* margins) {
  const std::vector<float> all = Prefill(prompt);
  std::span<const float> logits = std::span(all).subspan((prompt.size() - 1) * vocabulary());
  Tokens tokens;
  for (;;) {
    const TokenId best = ArgMax(logits);
    tokens.push_back(best);
    if (margins != nullptr) {
      float second = -INFINITY;
      for (size_t i = 0; i < logits.size(); ++i) {
        if (static_cast<TokenId>(i) != best) second = std::max(second, logits[i]);
      }
      margins->push_back(logits[static_cast<size_t>(best)] - second);
    }
    if (tokens.size() == count) return tokens;
    logits = Next(best);
  }
}

Tokens Libllama::Tokenize(const std::string& text) const {
  Tokens tokens(text.size() + 8);
  const int32_t count = llama_tokenize(llama_model_get_vocab(model_.get()), text.data(), static_cast<int32_t>(text.size()),
                                       tokens.data(), static_cast<int32_t>(tokens.size()), true, false);
  CD_CHECK(count >= 0, "the text fits");
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

std::string Libllama::Text(const Tokens& tokens) const {
  std::string text;
  for (const TokenId token : tokens) {
    char piece[256];
    const int32_t size = llama_token_to_piece(llama_model_get_vocab(model_.get()), token, piece, sizeof(piece), 0, false);
    if (size > 0) text.append(piece, static_cast<size_t>(size));
  }
  return text;
}

Ours::Ours(const std::string& path, Options options, size_t sequences, uint64_t tokens_per_sequence) {
  auto model = model::Model::Load({.path = path, .model_hash = "00", .page_tokens = options.page_tokens, .repack = options.repack});
  if (!model.ok()) std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
  CD_CHECK(model.ok(), "the test's model loads");
  model_ = *std::move(model);
  auto executor = model::Executor::Create(model_, {.threads = options.threads, .cpus = {}, .max_rows = options.max_rows});
  CD_CHECK(executor.ok(), "an executor starts");
  executor_ = *std::move(executor);
  for (size_t i = 0; i < sequences; ++i) sequences_.emplace_back(model_->layout(), tokens_per_sequence);
  lengths_.resize(sequences);
}

std::vector<float> Ours::Step(const std::vector<Piece>& pieces) {
  std::vector<model::BatchRow> rows;
  for (const Piece& piece : pieces) {
    for (size_t i = 0; i < piece.tokens.size(); ++i) {
      const bool wants = !piece.no_logits && (piece.all_logits || i + 1 == piece.tokens.size());
      rows.push_back(
          {.token = piece.tokens[i], .position = lengths_[piece.sequence]++, .table = piece.sequence, .wants_logits = wants});
    }
  }
  std::vector<std::span<std::byte* const>> tables;
  for (const auto& pages : sequences_) tables.push_back(pages.table());
  auto logits = executor_->Run({.rows = rows, .tables = tables});
  if (!logits.ok()) std::fprintf(stderr, "%s\n", logits.status().ToString().c_str());
  CD_CHECK(logits.ok(), "the step runs");
  return {logits->begin(), logits->end()};
}

void Ours::Reset() {
  std::ranges::fill(lengths_, 0u);
  for (auto& pages : sequences_) pages.Clear();
}

Tokens Ours::Greedy(uint32_t sequence, const Tokens& prompt, size_t count, size_t chunk) {
  std::vector<float> logits;
  for (size_t from = 0; from < prompt.size(); from += chunk) {
    const size_t to = std::min(from + chunk, prompt.size());
    logits = Step({{.sequence = sequence,
                    .tokens = {prompt.begin() + static_cast<ptrdiff_t>(from), prompt.begin() + static_cast<ptrdiff_t>(to)},
                    .no_logits = to < prompt.size()}});
  }
  Tokens tokens = {ArgMax(logits)};
  while (tokens.size() < count) tokens.push_back(ArgMax(Step({{.sequence = sequence, .tokens = {tokens.back()}}})));
  return tokens;
}

}  // namespace cofferdam::oracle
