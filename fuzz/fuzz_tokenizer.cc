// Any bytes as text, in vocabularies of three families, and as a conversation in the embedded model's chat template.
#include <memory>
#include <string>
#include <vector>

#include "fuzz.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace cofferdam::text {
namespace {

std::unique_ptr<const Tokenizer> Load(const std::string& path) {
  auto tokenizer = Tokenizer::Load(path);
  CD_CHECK(tokenizer.ok(), "the vocabulary is there");
  return *std::move(tokenizer);
}

struct Vocabulary {
  std::unique_ptr<const Tokenizer> tokenizer;
  bool sentence_piece = false;  // writes a space as U+2581, so that both come back as a space
};

const std::vector<Vocabulary>& Vocabularies() {
  static const auto& all = *[] {
    auto* made = new std::vector<Vocabulary>;
    const std::string folder = COFFERDAM_VOCABULARIES;
    made->push_back({Load(COFFERDAM_DEFAULT_MODEL)});
    made->push_back({Load(folder + "/ggml-vocab-llama-spm.gguf"), true});
    made->push_back({Load(folder + "/ggml-vocab-gpt-2.gguf")});
    return made;
  }();
  return all;
}

void CheckTokens(const Vocabulary& vocabulary, std::string_view text, bool add_special, bool parse_special) {
  const Tokenizer& tokenizer = *vocabulary.tokenizer;
  const auto tokens = tokenizer.Tokenize(text, add_special, parse_special);
  const auto again = tokenizer.Tokenize(text, add_special, parse_special);
  CD_CHECK(tokens.ok() == again.ok() && (!tokens.ok() || *tokens == *again), "tokens are a function of the text");
  if (!tokens.ok()) return;
  std::string bytes;
  for (const TokenId id : *tokens) {
    CD_CHECK(tokenizer.IsToken(id), "a token is of the vocabulary");
    bytes += tokenizer.TokenBytes(id, true);
  }
  const std::string back = tokenizer.Detokenize(*tokens, true);
  CD_CHECK(IsValidUtf8(back), "text is UTF-8");
  Utf8Stream stream;
  const std::string all = stream.Feed(bytes) + stream.Finish();
  CD_CHECK(back == all || " " + back == all, "the text of a sequence is that of its tokens");
  const bool reversible = IsValidUtf8(text) && !add_special && !parse_special &&
                          !(vocabulary.sentence_piece && text.find("\xE2\x96\x81") != std::string_view::npos);
  if (reversible) CD_CHECK(tokenizer.Detokenize(*tokens, false) == text, "text comes back from its tokens");
}

void CheckConversation(fuzz::Input& input) {
  const Tokenizer& tokenizer = *Vocabularies().front().tokenizer;
  static const auto& chat = *new auto(ChatTemplate::Create(tokenizer));
  CD_CHECK(chat.ok(), "the embedded model's template parses");
  constexpr const char* kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  std::vector<ChatMessage> messages;
  while (!input.empty() && messages.size() < 4) {
    ChatMessage message{.role = kRoles[input.Byte() % 5], .content = {}, .parts = {}, .tool_call_id = {}};
    const std::string text(input.Text(input.Byte()));
    if (!IsValidUtf8(text)) return;  // the gateway has refused it
    if (input.Byte() % 2 == 0) {
      message.content = text;
    } else {
      message.parts = {text};
    }
    messages.push_back(std::move(message));
  }
  const auto prompt = (*chat)->Apply(messages, true);
  if (prompt.ok()) CD_CHECK(tokenizer.Tokenize(*prompt, true, true).ok(), "a prompt can be tokenized");
}

}  // namespace
}  // namespace cofferdam::text

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  cofferdam::text::Vocabularies();
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cofferdam::text;
  cofferdam::fuzz::Input input(data, size);
  const uint8_t how = input.Byte();
  if (how % 4 == 3) {
    CheckConversation(input);
  } else {
    CheckTokens(Vocabularies()[how % 4], input.Rest(), (how & 4) != 0, (how & 8) != 0);
  }
  return 0;
}
