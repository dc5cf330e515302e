#include "faults/server_load.h"

#include <gtest/gtest.h>

#include <random>

#include "e2e/questions.h"

namespace cofferdam::faults {
namespace {

using http::Json;

constexpr size_t kTenants = 4, kMostComplaints = 5;
constexpr uint64_t kLongestAnswer = 64, kLongestStory = 20;  // tokens, sentences
constexpr uint64_t kOneInIsCut = 8, kLongestPatienceUs = 200000;

std::string KeyOf(size_t tenant) { return "key-of-tenant-" + std::to_string(tenant); }

std::string Post(const Json& body, size_t tenant) {
  return http::Post("/v1/completions", body.dump(), "Authorization: Bearer " + KeyOf(tenant) + "\r\n");
}

std::string Story(std::mt19937_64& random) {
  std::string story = "Once upon a time, there was a little dog.";
  for (uint64_t n = random() % kLongestStory; n > 0; --n) story += e2e::kStorySentences[random() % e2e::kStorySentences.size()];
  return story;
}

// Of a whole answer or of all chunks of a stream.
std::string TextOf(bool stream, const http::Response& response) {
  return stream ? http::TextOf(response.body) : response.json().value("/choices/0/text"_json_pointer, "");
}
std::string FinishReasonOf(bool stream, const http::Response& response) {
  return stream ? http::FinishReasonOf(response.body) : response.json().value("/choices/0/finish_reason"_json_pointer, "");
}

// Empty when the answer is no error.
std::string ErrorCodeOf(bool stream, const http::Response& response) {
  if (response.status != 200 || !stream) return response.json().value("/error/code"_json_pointer, "");
  for (const std::string& event : http::EventsOf(response.body)) {
    const Json chunk = Json::parse(event, nullptr, false);
    if (chunk.is_object() && chunk.contains("error")) return chunk["error"].value("code", "");
  }
  return "";
}

}  // namespace

std::vector<std::string> TenantArguments() {
  std::vector<std::string> arguments;
  for (size_t i = 0; i < kTenants; ++i) arguments.insert(arguments.end(), {"--api-key", KeyOf(i)});
  return arguments;
}

std::vector<Question> AskUndisturbed(const e2e::Cluster& cluster, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Question> questions(count);
  for (size_t i = 0; i < count; ++i) {
    Question& question = questions[i];
    question.body = {{"prompt", Story(random)},
                     {"max_tokens", 1 + random() % kLongestAnswer},
                     {"ignore_eos", true},
                     {"temperature", i % 2 == 0 ? 0.0 : 0.8},
                     {"seed", i}};
    const http::Response response = cluster.Ask(Post(question.body, i % kTenants));
    EXPECT_EQ(response.status, 200) << response.body;
    question.answer = TextOf(false, response);
    question.finish_reason = FinishReasonOf(false, response);
  }
  return questions;
}

void Judge(const Question& question, bool stream, const http::Response& response, Outcomes& outcomes) {
  const std::string code = response.complete ? ErrorCodeOf(stream, response) : "";
  const bool begun = stream && response.status == 200;
  const std::string text = response.status == 200 ? TextOf(stream, response) : "";
  if (code.empty() && response.complete && response.status == 200) {
    if (text == question.answer && FinishReasonOf(stream, response) == question.finish_reason) {
      ++outcomes.right;
      return;
    }
    ++outcomes.wrong;
  } else if (code == "kv_integrity_violation" && (begun ? question.answer.starts_with(text) : response.status == 500)) {
    ++outcomes.clear_errors;
    if (begun) ++outcomes.streams_ended;
    return;
  } else if (!question.answer.starts_with(text)) {
    ++outcomes.wrong;
  } else {
    ++outcomes.other;
  }
  if (outcomes.complaints.size() < kMostComplaints) {
    outcomes.complaints.push_back(question.body.dump() + "\nmust be answered " + question.answer + "\nand was, with status " +
                                  std::to_string(response.status) + ": " + response.body);
  }
}

ServerLoad::ServerLoad(uint16_t port, const std::vector<Question>& questions, uint64_t seed, size_t clients)
    : port_(port), questions_(questions) {
  for (size_t i = 0; i < clients; ++i) clients_.emplace_back([this, seed, i] { Client(seed * 1000 + i); });
}

void ServerLoad::Client(uint64_t seed) {
  std::mt19937_64 random(seed);
  while (!stopping_) {
    const Question& question = questions_[random() % questions_.size()];
    const bool stream = random() % 2 == 0;
    Json body = question.body;
    body["stream"] = stream;
    http::RawClient client(port_);
    client.Send(Post(body, random() % kTenants));
    if (random() % kOneInIsCut == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % kLongestPatienceUs));
      client.Reset();
      const std::lock_guard lock(mutex_);
      ++outcomes_.cut;
      continue;
    }
    const http::Response response = client.Read();
    const std::lock_guard lock(mutex_);
    Judge(question, stream, response, outcomes_);
  }
}

Outcomes ServerLoad::Stop() {
  stopping_ = true;
  clients_.clear();
  return outcomes_;
}

}  // namespace cofferdam::faults
