#include "e2e/questions.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>

namespace cofferdam::e2e {
namespace {

constexpr float kTolerance = 0.05f;  // see tests/oracle/greedy_test.cc

// A story of `tokens` tokens, a function of the seed: what the model was made for, so its answers are mostly sure.
oracle::Tokens StoryOf(const oracle::Libllama& libllama, size_t tokens, uint64_t seed) {
  constexpr const char* kNames[] = {"Lily", "Tom", "Ben", "Mia", "Sam", "Anna", "Max", "Sue"};
  constexpr const char* kThings[] = {"ball", "car", "doll", "boat", "kite", "cat", "dog", "bear"};
  std::mt19937_64 random(seed);
  std::string story = "Once upon a time, there was a little girl named " + std::string(kNames[random() % 8]) + ".";
  while (libllama.Tokenize(story).size() < tokens) {
    story += random() % 3 == 0 ? " " + std::string(kNames[random() % 8]) + " had a " + kThings[random() % 8] + "."
                               : kStorySentences[random() % kStorySentences.size()];
  }
  oracle::Tokens result = libllama.Tokenize(story);
  result.resize(tokens);
  return result;
}

}  // namespace

bool Question::Accepts(const oracle::Libllama& libllama, const std::string& text, size_t tokens) const {
  const auto first = [&](size_t n) { return libllama.Text({answer.begin(), answer.begin() + static_cast<ptrdiff_t>(n)}); };
  return tokens <= sure ? text == first(tokens) : text.starts_with(first(sure));
}

std::vector<Question> Questions(oracle::Libllama& libllama, size_t count, size_t shortest, size_t longest, size_t answer_tokens) {
  std::vector<Question> questions(count);
  size_t sure = 0;
  for (size_t i = 0; i < count; ++i) {
    Question& q = questions[i];
    q.prompt = StoryOf(libllama, shortest + i * 37 % (longest - shortest + 1), i + 1);
    std::vector<float> margins;
    q.answer = libllama.Greedy(q.prompt, answer_tokens, &margins);
    q.sure = static_cast<size_t>(std::ranges::find_if(margins, [](float m) { return m < kTolerance; }) - margins.begin());
    sure += q.sure;
  }
  std::printf("%zu questions; %zu of %zu answer tokens come before a near tie\n", count, sure, count * answer_tokens);
  return questions;
}

}  // namespace cofferdam::e2e
