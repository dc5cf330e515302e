#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "engine/engine_testing.h"

namespace cofferdam::engine {
namespace {

TEST_F(EngineTest, I13_ABatchChangesNoAnswer) {
  std::vector<std::vector<TokenId>> alone;
  for (unsigned i = 0; i < 8; ++i) alone.push_back(Generate(Spec(Prompt(i, 1 + i * 9), 20)));
  std::vector<SequenceId> ids;
  for (unsigned i = 0; i < 8; ++i) {
    ids.push_back(Start(Spec(Prompt(i, 1 + i * 9), 20)));
    engine_->Run(ids.back());
    StepOnce();
  }
  StepAll();
  for (unsigned i = 0; i < 8; ++i) EXPECT_EQ(tokens_[ids[i]], alone[i]) << i;
}

TEST_F(EngineTest, TheMostLikelyTokensComeWithEachToken) {
  SequenceSpec spec = Spec(Prompt(1, 20), 8);
  spec.top_logprobs = 3;
  const SequenceId id = Start(spec);
  engine_->Run(id);
  int seen = 0;
  while (engine_->HasWork()) {
    std::vector<Event> events;
    engine_->Step(events);
    for (const Event& event : events) {
      const auto* token = std::get_if<TokenEvent>(&event);
      if (token == nullptr) continue;
      ++seen;
      ASSERT_EQ(token->top.size(), 3u);
      EXPECT_EQ(token->top[0].token, token->token);  // greedy
      EXPECT_EQ(token->top[0].logprob, token->logprob);
      EXPECT_GE(token->top[1].logprob, token->top[2].logprob);
    }
  }
  EXPECT_EQ(seen, 8);
  spec.top_logprobs = model::kMaxTopLogprobs + 1;
  EXPECT_EQ(engine_->CheckSpec(spec).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, AnAnswerThatMustBeLongerHasNoStopTokenBefore) {
  const std::vector<TokenId> free = Generate(Spec(Prompt(1, 20), 12));
  SequenceSpec spec = Spec(Prompt(1, 20), 12);
  spec.stop_tokens = {free[2]};
  const std::vector<TokenId> stopped = Generate(spec);
  EXPECT_LE(stopped.size(), 3u);
  EXPECT_EQ(stopped.back(), free[2]);
  spec.min_output = 6;
  const std::vector<TokenId> longer = Generate(spec);
  ASSERT_GE(longer.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_NE(longer[i], free[2]) << i;
  // What was generated before, elsewhere, counts.
  SequenceSpec resumed = spec;
  resumed.tokens.insert(resumed.tokens.end(), longer.begin(), longer.begin() + 4);
  resumed.resumed_tokens = 4;
  resumed.max_output = 8;
  EXPECT_EQ(Generate(resumed), std::vector<TokenId>(longer.begin() + 4, longer.end()));
}

TEST_F(EngineTest, I13_AdoptedPagesGiveTheSameAnswerAsComputedOnes) {
  const std::vector<TokenId> prompt = Prompt(5, 70);
  const std::vector<TokenId> expected = Generate(Spec(prompt, 24));
  const SequenceId sink = HandOver(prompt, prompt, 24);
  engine_->Run(sink);
  StepAll();
  EXPECT_EQ(tokens_[sink], expected);
}

TEST_F(EngineTest, I4_PagesThatNameOtherTokensDoNotRun) {
  const std::vector<TokenId> others = Prompt(3, 40), own = Prompt(4, 40);
  const SequenceId sink = HandOver(others, others, 4, own);
  EXPECT_EQ(engine_->CheckAdopted(sink).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Failed(kv::CheckKind::kSeal), 1u);
  engine_->Release(sink);
}

TEST_F(EngineTest, I13_CheckingContentChangesNoAnswer) {
  const std::vector<TokenId> prompt = Prompt(5, 70);
  const std::vector<TokenId> expected = Generate(Spec(prompt, 24));
  const SequenceId sink = HandOver(prompt, prompt, 24);
  ASSERT_TRUE(engine_->CheckAdopted(sink).ok());
  // The graphs of the same shapes as before, those of prompts among them.
  EXPECT_EQ(Generate(Spec(prompt, 24)), expected);
  engine_->Run(sink);
  StepAll();
  EXPECT_EQ(tokens_[sink], expected);
}

TEST_F(EngineTest, ContentIsCheckedAgainstTheTokensAndNotAgainstTheSeal) {
  const std::vector<TokenId> prompt = Prompt(5, 70);
  // Often enough that a whole page is looked at, too.
  for (int i = 0; i < 70; ++i) {
    const SequenceId good = HandOver(prompt, prompt, 4);
    EXPECT_TRUE(engine_->CheckAdopted(good).ok()) << i;
    engine_->Release(good);
    engine_->Reclaim();
  }
  EXPECT_EQ(Made(kv::CheckKind::kContent), 70u * 5);
  for (size_t page = 0; page < 4; ++page) {
    std::vector<TokenId> other = prompt;
    for (size_t slot = 0; slot < 16; ++slot) other[page * 16 + slot] ^= 1;
    const SequenceId bad = HandOver(other, prompt, 4);
    EXPECT_EQ(engine_->CheckAdopted(bad).code(), absl::StatusCode::kDataLoss) << page;
    engine_->Release(bad);
    engine_->Reclaim();
  }
  EXPECT_EQ(Failed(kv::CheckKind::kContent), 4u);
}

TEST_F(EngineTest, I6_I12_AWrongTagEndsItsOwnRequestAlone) {
  const std::vector<TokenId> expected = Generate(Spec(Prompt(1, 40), 30));
  const SequenceId victim = Start(Spec(Prompt(2, 40), 30)), other = Start(Spec(Prompt(1, 40), 30));
  engine_->Run(victim);
  engine_->Run(other);
  StepOnce();
  StepOnce();
  const PageId page = engine_->PageAt(victim, 1).page;
  pool_->Payload(page).data()[-3] ^= std::byte{1};
  const size_t before = tokens_[victim].size();
  StepAll();
  EXPECT_EQ(failed_[victim].code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(tokens_[victim].size(), before) << "no token is sampled from a page that failed its check";
  EXPECT_EQ(tokens_[other], expected);
  EXPECT_EQ(pool_->StateOf(page), kv::PageState::kQuarantined);
  EXPECT_EQ(engine_->counters().checks[kv::CheckKind::kTags].failed, 1u);
}

TEST_F(EngineTest, I12_EveryPageWithAWrongTagIsQuarantined) {
  const SequenceId victim = Start(Spec(Prompt(2, 70), 30));
  engine_->Run(victim);
  StepOnce();
  StepOnce();
  std::vector<PageId> pages;
  for (const uint32_t ordinal : {0U, 2U}) {
    pages.push_back(engine_->PageAt(victim, ordinal).page);
    pool_->Payload(pages.back()).data()[-3] ^= std::byte{1};
  }
  StepAll();
  EXPECT_EQ(failed_[victim].code(), absl::StatusCode::kDataLoss);
  for (const PageId page : pages) EXPECT_EQ(pool_->StateOf(page), kv::PageState::kQuarantined);
  EXPECT_EQ(engine_->counters().checks[kv::CheckKind::kTags].failed, 2u);
}

TEST_F(EngineTest, I6_FullModeFindsABitFlippedAnywhereInASealedPageBeforeATokenIsSampled) {
  engine_->SetVerifyReads({.mode = VerifyReads::Mode::kFull});
  const std::vector<TokenId> expected = Generate(Spec(Prompt(1, 40), 30));
  EXPECT_EQ(Failed(kv::CheckKind::kPayload), 0u);
  const size_t bytes = pool_->layout().payload_bytes();
  // Every run of the page, and its first and last byte.
  for (size_t at : {size_t{0}, bytes / 5, bytes / 3, bytes / 2, bytes - pool_->layout().run_bytes(), bytes - 1}) {
    const SequenceId victim = Start(Spec(Prompt(2, 40), 30)), other = Start(Spec(Prompt(1, 40), 30));
    engine_->Run(victim);
    engine_->Run(other);
    StepOnce();
    const PageId page = engine_->PageAt(victim, 1).page;
    const size_t before = tokens_[victim].size();
    Flip(page, at);
    StepAll();
    EXPECT_EQ(failed_[victim].code(), absl::StatusCode::kDataLoss) << at;
    ASSERT_EQ(wrong_[victim].size(), 1u) << at;
    EXPECT_EQ(wrong_[victim][0].kind, kv::CheckKind::kPayload);
    EXPECT_EQ(wrong_[victim][0].page, page);
    EXPECT_EQ(wrong_[victim][0].ordinal, 1u);
    EXPECT_EQ(tokens_[victim].size(), before) << "no token is sampled from a page that failed its check";
    EXPECT_EQ(tokens_[other], expected) << "nobody else is disturbed";
    EXPECT_EQ(pool_->StateOf(page), kv::PageState::kQuarantined);
  }
  EXPECT_EQ(Failed(kv::CheckKind::kPayload), 6u);
}

TEST_F(EngineTest, I6_FullModeChecksAPageThatAPromptsLaterChunkReads) {
  engine_->SetVerifyReads({.mode = VerifyReads::Mode::kFull});
  const SequenceId victim = Start(Spec(Prompt(2, 150), 4));
  engine_->Run(victim);
  StepOnce();
  Flip(engine_->PageAt(victim, 2).page, 9);
  StepOnce();
  EXPECT_EQ(failed_[victim].code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Made(kv::CheckKind::kPayload), 4u) << "the four pages that the first chunk sealed";
}

TEST_F(EngineTest, I6_SampledModeChecksItsNumberOfPagesAStepAndComesAroundToAll) {
  engine_->SetVerifyReads({.mode = VerifyReads::Mode::kSampled, .sampled_pages = 2});
  const SequenceId victim = Start(Spec(Prompt(2, 90), 60)), other = Start(Spec(Prompt(1, 60), 60));
  engine_->Run(victim);
  engine_->Run(other);
  StepOnce(), StepOnce(), StepOnce();
  const uint64_t before = Made(kv::CheckKind::kPayload);
  StepOnce();
  EXPECT_EQ(Made(kv::CheckKind::kPayload), before + 2);
  Flip(engine_->PageAt(victim, 3).page, 77);
  for (int step = 0; step < 6; ++step) StepOnce();
  EXPECT_EQ(failed_[victim].code(), absl::StatusCode::kDataLoss) << "eight pages are sealed, and two a step are checked";
  EXPECT_FALSE(failed_.contains(other));
  StepAll();
}

TEST_F(EngineTest, I6_TheScrubberComesAroundToEveryPageThatLiesThere) {
  const SequenceId held = Start({.domain_key = {}, .tokens = Prompt(4, 100), .max_output = 0, .sampling = {}});
  const SequenceId good = Start({.domain_key = {}, .tokens = Prompt(5, 64), .max_output = 0, .sampling = {}});
  engine_->Run(held);
  engine_->Run(good);
  StepAll();
  std::vector<Event> events;
  const size_t page_bytes = pool_->layout().payload_bytes();
  engine_->Scrub(11 * page_bytes, events);
  EXPECT_EQ(Made(kv::CheckKind::kScrub), 11u);
  EXPECT_TRUE(events.empty());
  const PageId page = engine_->PageAt(held, 6).page;
  Flip(page, 1);
  for (int turn = 0; turn < 6; ++turn) engine_->Scrub(2 * page_bytes, events);
  EXPECT_EQ(Failed(kv::CheckKind::kScrub), 1u);
  ASSERT_EQ(events.size(), 1u);
  Note(events[0]);
  EXPECT_EQ(wrong_[held].at(0).kind, kv::CheckKind::kScrub);
  EXPECT_EQ(pool_->StateOf(page), kv::PageState::kQuarantined);
  EXPECT_FALSE(failed_.contains(good));
  engine_->Release(good);
  engine_->Scrub(100 * page_bytes, events);
  EXPECT_EQ(events.size(), 1u) << "nothing is left to scrub";
}

TEST_F(EngineTest, I1_WhatCannotRunIsRejectedAndTakesNoPage) {
  auto reason = [&](SequenceSpec spec) {
    auto result = engine_->Start(std::move(spec));
    return std::holds_alternative<kv::Rejected>(result) ? std::get<kv::Rejected>(result).status : absl::OkStatus();
  };
  EXPECT_FALSE(reason(Spec({}, 4)).ok());
  EXPECT_FALSE(reason(Spec({1, 2, 512}, 4)).ok());
  EXPECT_FALSE(reason(Spec({1, -1}, 4)).ok());
  EXPECT_FALSE(reason(Spec({1}, 0)).ok());
  EXPECT_FALSE(reason(Spec(Prompt(1, 500), 13)).ok());
  EXPECT_EQ(pool_->counts().reserved_total, 0u);
  EXPECT_EQ(Generate(Spec(Prompt(1, 500), 12)).size(), 12u);
}

TEST_F(EngineTest, S5_EveryEndOfASequenceReleasesItsPagesOnce) {
  for (int stage = 0; stage < 4; ++stage) {
    const SequenceId id = Start(Spec(Prompt(3, 100), 8));
    if (stage > 0) engine_->Run(id);
    for (int step = 1; step < stage; ++step) StepOnce();
    engine_->Release(id);
    engine_->Release(id);
    engine_->Reclaim();
    EXPECT_EQ(pool_->counts().free(), kPages) << stage;
  }
}

TEST_F(EngineTest, SamplingIsAFunctionOfSeedAndPositionThroughAResume) {
  SequenceSpec spec = Spec(Prompt(9, 20), 30);
  spec.sampling = model::SamplingParams{.temperature = 1.0f, .seed = 11};
  const std::vector<TokenId> whole = Generate(spec);
  SequenceSpec resumed = spec;
  resumed.tokens.insert(resumed.tokens.end(), whole.begin(), whole.begin() + 10);
  resumed.resumed_tokens = 10;
  resumed.max_output = 20;
  EXPECT_EQ(Generate(resumed), std::vector<TokenId>(whole.begin() + 10, whole.end()));
}

}  // namespace
}  // namespace cofferdam::engine
