#include "gateway/logprobs.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "gateway/openai_response.h"
#include "text/utf8.h"

namespace cofferdam::gateway {
namespace {

std::string Number(float logprob) { return std::isfinite(logprob) ? absl::StrCat(logprob) : "-9999.0"; }

// As OpenAI names tokens of completions, so that the parts of a character have names that differ.
std::string NameOf(const std::string& bytes) {
  if (text::IsValidUtf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char c : bytes) absl::StrAppend(&name, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
  return name;
}

std::string Bytes(const std::string& bytes) {
  std::string list = "[";
  for (const char c : bytes)
    absl::StrAppend(&list, list.size() == 1 ? "" : ",", static_cast<unsigned>(static_cast<unsigned char>(c)));
  return list + "]";
}

void Append(std::string& list, const std::string& item) {
  if (!list.empty()) list += ',';
  list += item;
}

}  // namespace

std::vector<LogprobQueue::Entry> LogprobQueue::TakeShown(uint64_t shown) {
  std::vector<Entry> entries;
  while (!waiting_.empty() && waiting_.front().end <= shown) {
    taken_ = waiting_.front().end;
    entries.push_back(std::move(waiting_.front().entry));
    waiting_.pop_front();
  }
  return entries;
}

std::vector<LogprobQueue::Entry> LogprobQueue::TakeLast(uint64_t shown) {
  std::vector<Entry> entries = TakeShown(shown);
  if (!waiting_.empty() && taken_ < shown) entries.push_back(std::move(waiting_.front().entry));
  waiting_.clear();
  return entries;
}

void LogprobsJson::Add(const std::vector<LogprobQueue::Entry>& entries) {
  for (const LogprobQueue::Entry& entry : entries) {
    if (chat_) {
      AddToChat(entry.token);
    } else {
      AddToCompletion(entry);
    }
  }
}

void LogprobsJson::AddToChat(const TokenLogprobs& token) {
  const auto fields = [this](TokenId id, float logprob) {
    const std::string bytes = tokenizer_.TokenBytes(id, true);
    return absl::StrCat("{\"token\":", JsonString(bytes), ",\"logprob\":", Number(logprob), ",\"bytes\":", Bytes(bytes));
  };
  std::string top;
  for (const auto& [id, logprob] : token.top) Append(top, fields(id, logprob) + "}");
  Append(content_, absl::StrCat(fields(token.token, token.logprob), ",\"top_logprobs\":[", top, "]}"));
}

void LogprobsJson::AddToCompletion(const LogprobQueue::Entry& entry) {
  const TokenLogprobs& token = entry.token;
  Append(content_, JsonString(NameOf(tokenizer_.TokenBytes(token.token, true))));
  Append(logprobs_, Number(token.logprob));
  Append(offsets_, absl::StrCat(entry.offset));
  std::string top;
  std::set<std::string> names;
  const auto add = [&](TokenId id, float logprob) {
    // Tokens may share a text; the likeliest of them has it.
    const std::string name = JsonString(NameOf(tokenizer_.TokenBytes(id, true)));
    if (names.insert(name).second) Append(top, absl::StrCat(name, ":", Number(logprob)));
  };
  for (const auto& [id, logprob] : token.top) add(id, logprob);
  // The chosen one is among them, as with OpenAI: up to one more than was asked for.
  if (!token.top.empty()) add(token.token, token.logprob);
  Append(top_, token.top.empty() ? "null" : absl::StrCat("{", top, "}"));
}

std::string LogprobsJson::Json() const {
  if (chat_) return absl::StrCat("{\"content\":[", content_, "],\"refusal\":null}");
  return absl::StrCat("{\"tokens\":[", content_, "],\"token_logprobs\":[", logprobs_, "],\"top_logprobs\":[", top_,
                      "],\"text_offset\":[", offsets_, "]}");
}

}  // namespace cofferdam::gateway
