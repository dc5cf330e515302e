#include "text/chat_template.h"

#include <chat.h>
#include <common.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace cofferdam::text {
namespace {

constexpr size_t kMaxReasonBytes = 300;

common_chat_msg ToCommon(const ChatMessage& message) {
  common_chat_msg out;
  out.role = message.role;
  out.content = message.content;
  out.tool_call_id = message.tool_call_id;
  for (const std::string& part : message.parts) out.content_parts.push_back({"text", part});
  return out;
}

// The template's complaint without the source listing that the interpreter appends, which quotes the template.
std::string Reason(const std::exception& problem) {
  std::string reason = problem.what();
  if (const size_t line = reason.find('\n'); line != std::string::npos) reason.resize(line);
  if (reason.size() > kMaxReasonBytes) reason.resize(kMaxReasonBytes);
  Utf8Stream characters;
  const std::string whole = characters.Feed(reason);
  return whole + characters.Finish();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ChatTemplate>> ChatTemplate::Create(const Tokenizer& tokenizer) {
  SilenceLlamaLogs();
  try {
    common_chat_templates_ptr templates = common_chat_templates_init(tokenizer.model(), "");
    return std::unique_ptr<const ChatTemplate>(new ChatTemplate(templates.release()));
  } catch (const std::exception& problem) {
    return absl::InvalidArgumentError(absl::StrCat("the model's chat template cannot be used: ", Reason(problem)));
  }
}

ChatTemplate::~ChatTemplate() { common_chat_templates_free(templates_); }

bool ChatTemplate::from_file() const { return common_chat_templates_was_explicit(templates_); }

absl::StatusOr<std::string> ChatTemplate::Apply(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const {
  try {
    common_chat_templates_inputs inputs;
    for (const ChatMessage& message : messages) inputs.messages.push_back(ToCommon(message));
    inputs.add_generation_prompt = add_generation_prompt;
    inputs.use_jinja = true;
    // Otherwise every request would derive a parser for tool calls by rendering the template many times.
    inputs.force_pure_content = true;
    return common_chat_templates_apply(templates_, inputs).prompt;
  } catch (const std::exception& problem) {
    return absl::InvalidArgumentError(absl::StrCat("the model's chat template refused these messages: ", Reason(problem)));
  }
}

}  // namespace cofferdam::text
