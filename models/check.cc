// Measures a model on held-out prompts with llama.cpp itself: its chat template, its tokenizer, greedy sampling.
//
//   check MODEL.gguf PROMPTS.jsonl [LINES]
//
// Prompts are as eval_prompts.py writes them. Prints the share of answers that are right to the last character for each
// kind of prompt, and wrong ones. A prompt with "ids" must also tokenize to these.
#include <chat.h>
#include <llama.h>
#include <log.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

constexpr int kMaxContext = 2048, kMaxAnswer = 24;
using Json = nlohmann::json;

struct Score {
  int prompts = 0, right = 0;
};

std::string Render(const common_chat_templates* templates, const Json& messages) {
  common_chat_templates_inputs inputs;
  for (const Json& message : messages) {
    common_chat_msg m;
    m.role = message.at("role");
    m.content = message.at("content");
    inputs.messages.push_back(m);
  }
  inputs.add_generation_prompt = true;
  inputs.use_jinja = true;
  inputs.force_pure_content = true;
  return common_chat_templates_apply(templates, inputs).prompt;
}

std::vector<llama_token> Tokenize(const llama_vocab* vocab, const std::string& text) {
  std::vector<llama_token> tokens(text.size() + 8);
  tokens.resize(llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), tokens.data(), static_cast<int>(tokens.size()),
                               true, true));
  return tokens;
}

std::string Piece(const llama_vocab* vocab, llama_token token) {
  char buffer[64];
  const int length = llama_token_to_piece(vocab, token, buffer, sizeof(buffer), 0, true);
  return std::string(buffer, length > 0 ? length : 0);
}

// Greedy, until an end-of-generation token or, for a plain text to be completed, a full stop.
std::string Answer(llama_context* context, const llama_vocab* vocab, std::vector<llama_token> tokens, bool plain) {
  llama_memory_clear(llama_get_memory(context), true);
  std::string answer;
  for (int i = 0; i < kMaxAnswer; ++i) {
    if (llama_decode(context, llama_batch_get_one(tokens.data(), static_cast<int>(tokens.size()))) != 0) std::abort();
    const float* logits = llama_get_logits_ith(context, -1);
    llama_token best = 0;
    for (llama_token t = 1; t < llama_vocab_n_tokens(vocab); ++t) {
      if (logits[t] > logits[best]) best = t;
    }
    const std::string piece = Piece(vocab, best);
    if (llama_vocab_is_eog(vocab, best) || (plain && piece == ".")) return answer;
    answer += piece;
    tokens = {best};
  }
  return answer;
}

bool SameIds(const Json& line, const std::vector<llama_token>& tokens) {
  return !line.contains("ids") || line.at("ids").get<std::vector<llama_token>>() == tokens;
}

int Check(const llama_model* model, llama_context* context, const char* prompts, int limit) {
  const llama_vocab* vocab = llama_model_get_vocab(model);
  const common_chat_templates_ptr templates = common_chat_templates_init(model, "");
  std::ifstream in(prompts);
  std::map<std::string, Score> scores;
  int count = 0, shown = 0, other_ids = 0, other_count = 0;
  for (std::string text; std::getline(in, text) && count < limit; ++count) {
    const Json line = Json::parse(text);
    const bool plain = line.contains("prompt");
    const std::vector<llama_token> tokens =
        Tokenize(vocab, plain ? line.at("prompt").get<std::string>() : Render(templates.get(), line.at("messages")));
    if (!SameIds(line, tokens)) ++other_ids;
    if (line.at("tokens").get<size_t>() != tokens.size()) ++other_count;
    const std::string answer = Answer(context, vocab, tokens, plain), want = line.at("answer");
    Score& score = scores[line.at("kind")];
    ++score.prompts;
    if (answer == want) {
      ++score.right;
    } else if (++shown <= 20) {
      std::printf("line %d, %s, %zu tokens: want '%s', got '%s'\n", count + 1, line.at("kind").get<std::string>().c_str(),
                  tokens.size(), want.c_str(), answer.c_str());
    }
  }
  for (const auto& [kind, score] : scores) {
    std::printf("%-12s %5d of %5d right, %.2f%%\n", kind.c_str(), score.right, score.prompts, 100.0 * score.right / score.prompts);
  }
  std::printf("%d prompts with other ids than expected, %d with another count of tokens\n", other_ids, other_count);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MODEL.gguf PROMPTS.jsonl [LINES]\n", argv[0]);
    return 2;
  }
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  common_log_set_verbosity_thold(-1);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return 1;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = kMaxContext;
  params.n_threads = params.n_threads_batch = 1;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return 1;
  const int rc = Check(model, context, argv[2], argc > 3 ? std::atoi(argv[3]) : 1 << 30);
  llama_free(context);
  llama_model_free(model);
  return rc;
}
