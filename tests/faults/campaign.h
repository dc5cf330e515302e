// Seeded faults against a running engine: memory that changes under it, and pages that arrive wrong.
//
// A pool of questions is answered once undisturbed; then a mixed load of the same questions runs, some of them through adopted
// pages, while faults are put in. Every fault has one or two victims. What must hold, and is counted when it does not:
//   - no token comes from a page that was wrong, where the mode must catch the fault;
//   - every such fault shows in the counts of failed checks;
//   - whoever is no victim gives exactly the tokens of the undisturbed run.
#ifndef COFFERDAM_TESTS_FAULTS_CAMPAIGN_H_
#define COFFERDAM_TESTS_FAULTS_CAMPAIGN_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "faults/kinds.h"
#include "model/model.h"

namespace cofferdam::faults {

struct Tally {
  uint64_t injected = 0;
  uint64_t caught = 0;     // the victim was ended, or its page refused, before a token came from the page
  uint64_t missed = 0;     // the victim went on, and gave the right tokens all the same
  uint64_t wrong = 0;      // the victim gave a token that is not the undisturbed run's
  uint64_t uncounted = 0;  // the fault was caught and no check says so
};
struct Result {
  std::array<Tally, kFaultKinds> by_kind{};
  uint64_t bystanders = 0;            // sequences that finished and were no victims
  uint64_t bystanders_disturbed = 0;  // of these, those with another token or an error
  uint64_t steps = 0;
  bool Holds(engine::VerifyReads::Mode mode) const;
};

struct Options {
  uint64_t faults = 1000;
  uint64_t seed = 1;
  engine::VerifyReads verify{};
  uint32_t sequences = 12;  // that run at once
};

// REQUIRES: the model's pages hold 16 tokens. One thread.
Result RunCampaign(const std::shared_ptr<const model::Model>& model, const Options& options);

// The table that a reader wants: kind by kind, what must be caught and what was.
std::string Table(const Result& result, const engine::VerifyReads& verify);

}  // namespace cofferdam::faults

#endif  // COFFERDAM_TESTS_FAULTS_CAMPAIGN_H_
