// The same small verbs over libllama's own inference and over ours, for tests that compare them.
#ifndef COFFERDAM_TESTS_ORACLE_RUNNERS_H_
#define COFFERDAM_TESTS_ORACLE_RUNNERS_H_

#include <llama.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/strong_id.h"
#include "model/executor.h"
#include "model/model.h"
#include "model/scratch_pages.h"

namespace cofferdam::oracle {

using Tokens = std::vector<TokenId>;

// The folder with stories260K.gguf, from COFFERDAM_TEST_MODELS; none when it is unset or lacks the file.
std::optional<std::string> StoriesPath();
// A vocabulary of llama.cpp's source.
std::string VocabularyPath(const std::string& name);
// A file name of this process in the temporary folder.
std::string TemporaryPath(const std::string& name);
// `count` tokens, a function of the seed.
Tokens RandomTokens(uint32_t vocabulary, size_t count, uint64_t seed);
TokenId ArgMax(std::span<const float> logits);
// max |a - b| / max |b|.
double RelativeDifference(std::span<const float> a, std::span<const float> b);

struct LibllamaOptions {
  bool repack = true;
  bool flash_attention = false;
  int threads = 1;
  uint32_t context = 1024;
};

// libllama with an f16 KV cache. Ends the process when the file cannot be loaded.
class Libllama {
 public:
  using Options = LibllamaOptions;
  explicit Libllama(const std::string& path, Options options = {});

  // Forgets everything, then feeds `tokens` at once; returns the logits of each, [tokens][vocabulary].
  std::vector<float> Prefill(const Tokens& tokens);
  // Feeds one more token; the view is valid until the next call.
  std::span<const float> Next(TokenId token);
  // Reads `count` tokens from the prompt on, greedily. `margins` receives the distance of the two best logits of each.
  Tokens Greedy(const Tokens& prompt, size_t count, std::vector<float>* margins);
  Tokens Tokenize(const std::string& text) const;
  std::string Text(const Tokens& tokens) const;
  uint32_t vocabulary() const;

 private:
  struct FreeModel {
    void operator()(llama_model* model) const { llama_model_free(model); }
  };
  struct FreeContext {
    void operator()(llama_context* context) const { llama_free(context); }
  };
  std::unique_ptr<llama_model, FreeModel> model_;
  std::unique_ptr<llama_context, FreeContext> context_;
  int32_t position_ = 0;
};

struct OursOptions {
  bool repack = true;
  int threads = 1;
  uint32_t max_rows = 512;
  uint32_t page_tokens = 64;
};

// Our executor with a few sequences of its own. Ends the process when the file cannot be loaded.
class Ours {
 public:
  using Options = OursOptions;
  Ours(const std::string& path, Options options, size_t sequences, uint64_t tokens_per_sequence);

  struct Piece {
    uint32_t sequence;
    std::vector<TokenId> tokens;
    bool all_logits = false;  // else only the last token's
    bool no_logits = false;
  };
  // One step over all pieces, each appended to its sequence. Returns [rows that want them][vocabulary], copied.
  std::vector<float> Step(const std::vector<Piece>& pieces);
  void Reset();  // empties all sequences
  // As Libllama::Greedy, on one sequence, with the prompt cut into chunks.
  Tokens Greedy(uint32_t sequence, const Tokens& prompt, size_t count, size_t chunk);
  uint32_t vocabulary() const { return model_->info().vocabulary; }
  const model::Model& model() const { return *model_; }
  model::Executor& executor() { return *executor_; }

 private:
  std::shared_ptr<const model::Model> model_;
  std::unique_ptr<model::Executor> executor_;
  std::vector<model::ScratchPages> sequences_;
  std::vector<uint32_t> lengths_;
};

}  // namespace cofferdam::oracle

#endif  // COFFERDAM_TESTS_ORACLE_RUNNERS_H_
