// A conversation as one prompt, the way the model file's Jinja template says.
#ifndef COFFERDAM_TEXT_CHAT_TEMPLATE_H_
#define COFFERDAM_TEXT_CHAT_TEMPLATE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

struct common_chat_templates;

namespace cofferdam::text {

class Tokenizer;

struct ChatMessage {
  std::string role;                // system, developer, user, assistant or tool
  std::string content;             // used when `parts` is empty
  std::vector<std::string> parts;  // text parts, kept apart because some templates treat them so
  std::string tool_call_id;        // of a tool's answer
};

// Const methods are thread-safe.
class ChatTemplate {
 public:
  // `tokenizer` must outlive the template. A model without a template gets ChatML.
  // Errors: INVALID_ARGUMENT (the file's template does not parse).
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Create(const Tokenizer& tokenizer);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // The prompt, to be tokenized with add_special and parse_special: a BOS that the vocabulary adds by itself is not in it.
  // Errors: INVALID_ARGUMENT (the template refused the conversation, with its own words).
  absl::StatusOr<std::string> Apply(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const;

  // False when ChatML stands in for a template that the file does not have.
  bool from_file() const;

 private:
  explicit ChatTemplate(common_chat_templates* templates) : templates_(templates) {}
  common_chat_templates* templates_;  // owned
};

}  // namespace cofferdam::text

#endif  // COFFERDAM_TEXT_CHAT_TEMPLATE_H_
