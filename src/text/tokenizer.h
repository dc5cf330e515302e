// Text to tokens and back, with the vocabulary of a GGUF file. Only the vocabulary is loaded, no weights.
#ifndef COFFERDAM_TEXT_TOKENIZER_H_
#define COFFERDAM_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/strong_id.h"

struct llama_model;
struct llama_vocab;

namespace cofferdam::text {

// Const methods are thread-safe. Nothing here prints: libllama's log goes to our debug level.
class Tokenizer {
 public:
  // `path` may be the first part of a split model (x-00001-of-0000N.gguf).
  // Errors: NOT_FOUND (no such file), INVALID_ARGUMENT (not a GGUF file, cut short, or without a vocabulary).
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Load(const std::string& path);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // `add_special` adds the vocabulary's own BOS/EOS where it asks for them; `parse_special` reads "<|im_start|>" and the
  // like as control tokens rather than as text. Errors: INVALID_ARGUMENT (text over 1 GiB, or the vocabulary cannot
  // express it).
  absl::StatusOr<std::vector<TokenId>> Tokenize(std::string_view text, bool add_special, bool parse_special) const;

  // The bytes of one token, which may be part of a character. Control tokens are empty unless `special`. An id outside
  // of the vocabulary is empty.
  std::string TokenBytes(TokenId id, bool special) const;
  // The text of a whole sequence; invalid UTF-8 becomes U+FFFD. Ids outside of the vocabulary are skipped.
  std::string Detokenize(std::span<const TokenId> tokens, bool special) const;

  bool IsToken(TokenId id) const { return id >= 0 && id < vocabulary_size_; }
  bool IsEndOfGeneration(TokenId id) const;
  const std::vector<TokenId>& end_of_generation_tokens() const { return end_of_generation_; }
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  int32_t vocabulary_size() const { return vocabulary_size_; }
  // The context that the file says its model was trained for; 0 when it does not say.
  uint32_t trained_context() const { return trained_context_; }
  // The file's Jinja chat template; empty when it has none.
  const std::string& chat_template() const { return chat_template_; }
  // For ChatTemplate. Valid as long as this object.
  const llama_model* model() const { return model_; }

 private:
  explicit Tokenizer(llama_model* model);

  llama_model* model_;  // owned
  const llama_vocab* vocab_;
  int32_t vocabulary_size_ = 0;
  uint32_t trained_context_ = 0;
  std::string chat_template_;
  std::vector<TokenId> end_of_generation_;
};

// Sends the logs of libllama, ggml and llama.cpp's `common` to our debug level. Idempotent and thread-safe; Load calls it.
void SilenceLlamaLogs();

}  // namespace cofferdam::text

#endif  // COFFERDAM_TEXT_TOKENIZER_H_
