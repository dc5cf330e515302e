// Sequences that start with a copy of the page which another one of their domain is filling.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/engine_testing.h"

namespace cofferdam::engine {
namespace {

class ForkTest : public EngineTest {
 protected:
  static constexpr uint32_t kTokens = 16;
  EngineOptions Options() const override {
    return {.role = "test worker", .context_tokens = 512, .chunk_tokens = 64, .prefix_cache = true};
  }
  SequenceSpec Of(const std::string& domain, std::vector<TokenId> tokens, uint32_t output = 30) {
    SequenceSpec spec = Spec(std::move(tokens), output);
    spec.domain = domain;
    spec.domain_key = kv::DomainKey({}, domain);
    return spec;
  }
  // Runs it for so many steps, or not at all.
  SequenceId StartAndStep(const SequenceSpec& spec, int steps) {
    const SequenceId id = Start(spec);
    engine_->Run(id);
    for (int i = 0; i < steps; ++i) StepOnce();
    return id;
  }
  // How many tokens this one copies when it is let run.
  uint64_t Copied(const SequenceSpec& spec, SequenceId* id = nullptr) {
    const uint64_t before = engine_->counters().tokens_copied;
    const SequenceId started = StartAndStep(spec, 0);
    if (id != nullptr) *id = started;
    return engine_->counters().tokens_copied - before;
  }
};

TEST_F(ForkTest, I13_AForkComputesItsLastTokenAloneAndAnswersAsAnUndisturbedRun) {
  const std::vector<TokenId> prompt = Prompt(1, 2 * kTokens + 10);
  StartAndStep(Of("a", prompt), 1);
  for (const int steps : {0, 3, 20}) {
    for (int i = 0; i < steps; ++i) StepOnce();
    SequenceSpec spec = Of("a", prompt);
    spec.sampling = model::SamplingParams{.temperature = 1, .seed = static_cast<uint64_t>(steps)};
    const std::vector<TokenId> expected = Alone(spec);
    const uint64_t rows = engine_->counters().prefill_tokens;
    SequenceId fork;
    EXPECT_EQ(Copied(spec, &fork), 9u) << "all of the rest but the last token";
    for (int i = 0; i < 5; ++i) StepOnce();
    EXPECT_EQ(engine_->counters().prefill_tokens, rows);
    const SequenceId again = StartAndStep(spec, 0);
    StepAll();
    EXPECT_EQ(tokens_[fork], expected);
    EXPECT_EQ(tokens_[again], expected) << "a fork of a fork";
    StartAndStep(Of("a", prompt), 1);
  }
  StepAll();
  EXPECT_EQ(failed_.size(), 0u);
}

TEST_F(ForkTest, APromptThatPartsInTheMiddleOfAPageCopiesWhatIsBeforeThat) {
  const std::vector<TokenId> prompt = Prompt(1, kTokens + 12);
  StartAndStep(Of("a", prompt), 1);
  std::vector<TokenId> other = prompt;
  other[kTokens + 7] = other[kTokens + 7] == 5 ? 6 : 5;
  const std::vector<TokenId> expected = Alone(Of("a", other));
  SequenceId fork;
  EXPECT_EQ(Copied(Of("a", other), &fork), 7u);
  StepAll();
  EXPECT_EQ(tokens_[fork], expected);
  // Of the page itself: its identity is that of its own tokens, and a later one finds it.
  EXPECT_EQ(engine_->CachedPages(Start(Of("a", other))), 1u);
  std::vector<TokenId> longer = other;
  longer.insert(longer.end(), expected.begin(), expected.end());
  const SequenceId next = Start(Of("a", longer));
  EXPECT_GT(engine_->CachedPages(next), 2u);
}

TEST_F(ForkTest, TooFewTokensAreNotCopiedAndAFullPageStillHasOneToCompute) {
  const std::vector<TokenId> prompt = Prompt(1, kTokens + 12);
  StartAndStep(Of("a", prompt), 1);
  std::vector<TokenId> other = prompt;
  other[kTokens + 3] = other[kTokens + 3] == 5 ? 6 : 5;
  EXPECT_EQ(Copied(Of("a", other)), 0u);
  // The first ends its page meanwhile; this one goes on behind it.
  std::vector<TokenId> longer = Prompt(2, kTokens);
  StartAndStep(Of("a", {longer.begin(), longer.end() - 1}), 1);
  longer.insert(longer.end(), 20, 7);
  const std::vector<TokenId> expected = Alone(Of("a", longer));
  SequenceId fork;
  EXPECT_EQ(Copied(Of("a", longer), &fork), kTokens - 1u);
  StepAll();
  EXPECT_EQ(tokens_[fork], expected);
}

TEST_F(ForkTest, I10_NothingIsCopiedFromAnotherDomain) {
  const std::vector<TokenId> prompt = Prompt(1, 2 * kTokens + 10);
  StartAndStep(Of("a", prompt), 1);
  EXPECT_EQ(Copied(Of("b", prompt)), 0u);
  SequenceSpec salted = Of("a", prompt);
  salted.domain_key = kv::DomainKey({}, "a, salted");
  EXPECT_EQ(Copied(salted), 0u) << "another key alone is another domain";
  const std::vector<TokenId> shorter = Prompt(3, 10);
  StartAndStep(Of("a", shorter), 4);
  EXPECT_EQ(Copied(Of("b", shorter)), 0u) << "also where no page stands before";
  EXPECT_EQ(Copied(Of("a", shorter)), 9u);
  StepAll();
}

TEST_F(ForkTest, I6_AnUncoveredOrWronglyTaggedPageIsNotCopied) {
  const std::vector<TokenId> prompt = Prompt(1, 10);
  const std::vector<TokenId> expected = Alone(Of("a", prompt));
  const SequenceId waiting = Start(Of("a", prompt));
  EXPECT_EQ(Copied(Of("a", prompt)), 0u) << "nothing is computed yet";
  engine_->Release(waiting);
  StepOnce();
  const SequenceId first(waiting.value() + 1);
  pool_->Payload(engine_->PageAt(first, 0).page).data()[-1] ^= std::byte{1};
  SequenceId fork;
  EXPECT_EQ(Copied(Of("a", prompt), &fork), 0u);
  StepAll();
  EXPECT_TRUE(failed_.contains(first));
  EXPECT_EQ(tokens_[fork], expected);
}

TEST_F(ForkTest, I6_TheBytesOfASealedPageAreComparedBeforeTheyAreUsed) {
  const std::vector<TokenId> prompt = Prompt(1, 10);
  const std::vector<TokenId> expected = Alone(Of("a", prompt));
  const SequenceId first = StartAndStep(Of("a", prompt), 12);
  Flip(engine_->PageAt(first, 0).page, 3);
  SequenceId fork;
  EXPECT_EQ(Copied(Of("a", prompt), &fork), 0u);
  StepAll();
  EXPECT_EQ(tokens_[fork], expected);
}

TEST_F(ForkTest, I12_TheRecordSaysFromWhichPageItWasCopied) {
  const std::vector<TokenId> prompt = Prompt(1, 10);
  const SequenceId first = StartAndStep(Of("a", prompt), 1);
  const auto [page, generation] = engine_->TenuresOf(first)[0];
  SequenceId fork;
  ASSERT_EQ(Copied(Of("a", prompt), &fork), 9u);
  std::vector<Event> events;
  engine_->Step(events);
  const auto copied = std::ranges::find_if(events, [](const Event& event) { return std::holds_alternative<CopiedEvent>(event); });
  ASSERT_NE(copied, events.end());
  EXPECT_EQ(SequenceOf(*copied), fork);
  EXPECT_EQ(std::get<CopiedEvent>(*copied).page, page);
  EXPECT_EQ(std::get<CopiedEvent>(*copied).generation, generation);
  StepAll();
}

TEST_F(ForkTest, I12_NothingIsCopiedThatCameFromAWorkerThatWasWrong) {
  const std::vector<TokenId> prompt = Prompt(1, 11);
  const SequenceId first = HandOver(prompt, prompt, 30);
  engine_->Run(first);
  SequenceSpec spec = Spec(prompt, 30);
  EXPECT_EQ(Copied(spec), 10u) << "what a peer has sent is as good as what was computed here";
  engine_->DropOrigin(1);
  EXPECT_EQ(Copied(spec), 0u);
  const SequenceId waiting = Start(spec);
  EXPECT_EQ(engine_->TokensToCopy(waiting), 0u);
  StepAll();
}

TEST_F(ForkTest, WithoutTheCacheNothingIsCopied) {
  EngineOptions options = Options();
  options.prefix_cache = false;
  engine_ = std::make_unique<Engine>(options, *executor_, *pool_);
  StartAndStep(Of("a", Prompt(1, 10)), 1);
  EXPECT_EQ(Copied(Of("a", Prompt(1, 10))), 0u);
  StepAll();
}

}  // namespace
}  // namespace cofferdam::engine
