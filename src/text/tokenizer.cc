#include "text/tokenizer.h"

#include <llama.h>
#include <log.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "text/utf8.h"

namespace cofferdam::text {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

// What libllama says about a model file, never about a request.
void ForwardLog(ggml_log_level level, const char* text, void*) {
  if (level < GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_CONT) return;
  std::string_view line(text);
  while (!line.empty() && line.back() == '\n') line.remove_suffix(1);
  if (!line.empty()) log::debug("libllama: {}", line);
}

std::string MetaValue(const llama_model* model, const std::string& key) {
  const int32_t length = llama_model_meta_val_str(model, key.c_str(), nullptr, 0);
  if (length < 0) return {};
  std::string value(static_cast<size_t>(length) + 1, '\0');
  llama_model_meta_val_str(model, key.c_str(), value.data(), value.size());
  value.pop_back();
  return value;
}

// libllama aborts on none of these, but its own message does not say which it was.
absl::Status CheckFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such model file"));
  }
  std::ifstream file(path, std::ios::binary);
  std::array<char, 4> magic{};
  if (!file.read(magic.data(), magic.size()) || std::string_view(magic.data(), magic.size()) != "GGUF") {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a GGUF file"));
  }
  return absl::OkStatus();
}

llama_model* LoadVocabulary(const std::string& path) {
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  try {
    return llama_model_load_from_file(path.c_str(), params);
  } catch (const std::exception& problem) {
    log::debug("libllama: {}", problem.what());
    return nullptr;
  }
}

}  // namespace

void SilenceLlamaLogs() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(ForwardLog, nullptr);
    common_log_pause(common_log_main());  // `common` discards what is logged to a paused log
    llama_backend_init();
  });
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Load(const std::string& path) {
  SilenceLlamaLogs();
  if (absl::Status status = CheckFile(path); !status.ok()) return status;
  llama_model* model = LoadVocabulary(path);
  if (model == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": the vocabulary could not be read: the file is cut short, a part of it is missing, or its "
                     "tokenizer is unknown"));
  }
  std::unique_ptr<const Tokenizer> tokenizer(new Tokenizer(model));
  if (llama_vocab_type(tokenizer->vocab_) == LLAMA_VOCAB_TYPE_NONE || tokenizer->vocabulary_size_ <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the file holds no vocabulary"));
  }
  return tokenizer;
}

Tokenizer::Tokenizer(llama_model* model) : model_(model), vocab_(llama_model_get_vocab(model)) {
  if (llama_vocab_type(vocab_) == LLAMA_VOCAB_TYPE_NONE) return;
  vocabulary_size_ = llama_vocab_n_tokens(vocab_);
  uint64_t context = 0;
  const std::string architecture = MetaValue(model, "general.architecture");
  if (absl::SimpleAtoi(MetaValue(model, architecture + ".context_length"), &context) && context <= UINT32_MAX) {
    trained_context_ = static_cast<uint32_t>(context);
  }
  if (const char* chat = llama_model_chat_template(model, nullptr); chat != nullptr) chat_template_ = chat;
  for (TokenId id = 0; id < vocabulary_size_; ++id) {
    if (llama_vocab_is_eog(vocab_, id)) end_of_generation_.push_back(id);
  }
}

Tokenizer::~Tokenizer() { llama_model_free(model_); }

absl::StatusOr<std::vector<TokenId>> Tokenizer::Tokenize(std::string_view text, bool add_special, bool parse_special) const {
  if (text.size() > kMaxTextBytes) return absl::InvalidArgumentError("the text is too long to be tokenized");
  // A token covers a byte or more in nearly every vocabulary; two more for BOS and EOS. If not, the second try has room.
  std::vector<TokenId> tokens(text.size() + 2);
  try {
    for (int attempt = 0; attempt < 2; ++attempt) {
      const int32_t count = llama_tokenize(vocab_, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                                           static_cast<int32_t>(tokens.size()), add_special, parse_special);
      if (count >= 0) {
        tokens.resize(static_cast<size_t>(count));
        return tokens;
      }
      if (count == INT32_MIN) break;
      tokens.resize(static_cast<size_t>(-count));
    }
  } catch (const std::exception&) {  // a byte that the vocabulary has no token for
  }
  return absl::InvalidArgumentError("the text cannot be expressed in the model's vocabulary");
}

std::string Tokenizer::TokenBytes(TokenId id, bool special) const {
  if (!IsToken(id)) return {};
  std::string piece(32, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int32_t length = llama_token_to_piece(vocab_, id, piece.data(), static_cast<int32_t>(piece.size()), 0, special);
    if (length >= 0) {
      piece.resize(static_cast<size_t>(length));
      return piece;
    }
    piece.resize(static_cast<size_t>(-length));
  }
  return {};
}

std::string Tokenizer::Detokenize(std::span<const TokenId> tokens, bool special) const {
  Utf8Stream characters;
  std::string text;
  bool first = true;
  const bool leading_space = llama_vocab_type(vocab_) == LLAMA_VOCAB_TYPE_SPM;
  for (const TokenId id : tokens) {
    std::string bytes = TokenBytes(id, special);
    // SentencePiece puts a space before the first word, which was never in the text.
    if (!bytes.empty() && std::exchange(first, false) && leading_space && bytes.front() == ' ') bytes.erase(0, 1);
    text += characters.Feed(bytes);
  }
  return text + characters.Finish();
}

bool Tokenizer::IsEndOfGeneration(TokenId id) const { return IsToken(id) && llama_vocab_is_eog(vocab_, id); }

std::optional<TokenId> Tokenizer::bos() const {
  const TokenId id = llama_vocab_bos(vocab_);
  return IsToken(id) ? std::optional<TokenId>(id) : std::nullopt;
}

std::optional<TokenId> Tokenizer::eos() const {
  const TokenId id = llama_vocab_eos(vocab_);
  return IsToken(id) ? std::optional<TokenId>(id) : std::nullopt;
}

}  // namespace cofferdam::text
