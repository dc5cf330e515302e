// Prompts whose greedy answers are known from libllama and are the measure for ours.
#ifndef COFFERDAM_TESTS_E2E_QUESTIONS_H_
#define COFFERDAM_TESTS_E2E_QUESTIONS_H_

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "runners.h"

namespace cofferdam::e2e {

// What the model of the stories was made for.
inline constexpr std::array<const char*, 8> kStorySentences = {" She loved to play outside in the park.",
                                                               " He was very happy.",
                                                               " One day, they went to the park together.",
                                                               " Her mom said, \"Be careful!\"",
                                                               " They saw a big tree.",
                                                               " He wanted to play with it.",
                                                               " She was sad and did not know what to do.",
                                                               " The sun was bright and the sky was blue."};

struct Question {
  oracle::Tokens prompt, answer;
  // Tokens of the answer before libllama's first near tie (see tests/oracle/greedy_test.cc): up to there it is the only right one.
  size_t sure = 0;

  // Whether `text` is the answer's first `tokens` tokens. After a near tie it may go on as it likes.
  bool Accepts(const oracle::Libllama& libllama, const std::string& text, size_t tokens) const;
};

// `count` questions with prompts of `shortest` to `longest` tokens and answers of `answer_tokens`.
std::vector<Question> Questions(oracle::Libllama& libllama, size_t count, size_t shortest, size_t longest, size_t answer_tokens);

}  // namespace cofferdam::e2e

#endif  // COFFERDAM_TESTS_E2E_QUESTIONS_H_
