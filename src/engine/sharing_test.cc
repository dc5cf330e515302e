// Pages that sequences of one domain share through the prefix cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/engine_testing.h"

namespace cofferdam::engine {
namespace {

class SharingTest : public EngineTest {
 protected:
  static constexpr uint32_t kTokens = 16;
  EngineOptions Options() const override {
    return {.role = "test worker", .context_tokens = 512, .chunk_tokens = 64, .prefix_cache = true};
  }
  SequenceSpec Of(const std::string& domain, std::vector<TokenId> tokens, uint32_t output) {
    SequenceSpec spec = Spec(std::move(tokens), output);
    spec.domain = domain;
    spec.domain_key = kv::DomainKey({}, domain);
    return spec;
  }
  // Starts as soon as what is in the way has been let go; none when that never comes.
  std::optional<SequenceId> StartWhenThereIsRoom(const SequenceSpec& spec) {
    for (int i = 0; i < 3; ++i) {
      auto started = engine_->Start(spec);
      if (const auto* ok = std::get_if<Engine::Started>(&started)) return ok->sequence;
      engine_->Reclaim();
    }
    return std::nullopt;
  }
  // The answer, with how many pages of the prompt were found.
  std::pair<std::vector<TokenId>, uint32_t> Ask(const SequenceSpec& spec) {
    const std::optional<SequenceId> id = StartWhenThereIsRoom(spec);
    if (!id.has_value()) return {};
    const uint32_t cached = engine_->CachedPages(*id);
    engine_->Run(*id);
    StepAll();
    return {tokens_[*id], cached};
  }
  // Has a prompt of domain "a" computed, and flips a bit of one of its pages while nobody uses it.
  PageId SpoilCached(const std::vector<TokenId>& prompt, uint32_t ordinal) {
    Ask(Of("a", prompt, 2));
    const SequenceId reader = Start(Of("a", prompt, 2));
    const PageId page = engine_->PageAt(reader, ordinal).page;
    engine_->Release(reader);
    Flip(page, 10);
    return page;
  }
  // Another engine, which has computed all tokens of a prompt but the last.
  struct Peer {
    Peer(SharingTest& test, SequenceSpec spec)
        : memory(kPages * test.model_->layout().page_bytes()),
          pool(test.model_->layout(), memory, 8, kv::ReuseOrder::kFifo),
          engine({.role = "peer", .context_tokens = 512, .chunk_tokens = 64}, *test.executor_, pool) {
      spec.tokens.pop_back();
      spec.sampling.reset();
      const SequenceId source = std::get<Engine::Started>(engine.Start(spec)).sequence;
      engine.Run(source);
      std::vector<Event> events;
      while (engine.HasWork()) engine.Step(events);
      sealed = engine.SealedPages(source);
    }
    std::vector<std::byte> memory;
    kv::Pool pool;
    Engine engine;
    std::vector<SealedEvent> sealed;
  };
  // Pages from `first` up to `end`, as if that worker had sent them.
  void Adopt(const Peer& peer, SequenceId sink, uint32_t first, uint32_t end, uint64_t origin) {
    for (uint32_t i = first; i < end; ++i) {
      const SealedEvent& page = peer.sealed[i];
      const auto view = engine_->PageAt(sink, page.ordinal);
      std::ranges::copy(const_cast<kv::Pool&>(peer.pool).Payload(page.page), view.payload.begin());
      const kv::Arrival arrival = kv::VerifyArrived(model_->layout(), view, page.seal, page.seal.identity, page.seal.tokens);
      ASSERT_TRUE(engine_->Adopt(sink, page.ordinal, std::get<kv::Verified>(arrival), origin).ok());
    }
  }
  // Of the first `tokens` of a prompt, held for a reader.
  std::optional<SequenceId> Hold(const std::string& domain, const std::vector<TokenId>& prompt, size_t tokens) {
    SequenceSpec spec = Of(domain, {prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(tokens)}, 0);
    spec.sampling.reset();
    return engine_->HoldCached(spec);
  }
  size_t Indexed(const std::string& domain, const std::vector<TokenId>& prompt) const {
    return engine_->cache().index().CountPrefix(kv::PageIdentities(kv::DomainKey({}, domain), model_->layout(), prompt));
  }
  uint64_t In(kv::PageState state) const { return pool_->counts().by_state[static_cast<size_t>(state)]; }
};

TEST_F(SharingTest, I13_ConversationsOverTheCacheGetTheAnswersOfAnUndisturbedRun) {
  std::mt19937 random(3);
  std::vector<std::vector<TokenId>> talks(6);
  uint64_t found = 0;
  for (int turn = 0; turn < 40; ++turn) {
    const size_t which = random() % talks.size();
    std::vector<TokenId>& talk = talks[which];
    if (talk.size() > 350) talk = talks[(which + 1) % talks.size()];
    if (talk.size() > 350) talk.clear();
    const std::vector<TokenId> more = Prompt(static_cast<unsigned>(turn), 5 + random() % 60);
    talk.insert(talk.end(), more.begin(), more.end());
    SequenceSpec spec = Of(which % 2 == 0 ? "a" : "b", talk, 1 + static_cast<uint32_t>(random() % 40));
    if (turn % 3 == 0) spec.sampling = model::SamplingParams{.temperature = 1, .seed = static_cast<uint64_t>(turn)};
    const std::vector<TokenId> expected = Alone(spec);
    const auto [answer, cached] = Ask(spec);
    ASSERT_EQ(answer, expected) << turn;
    found += cached;
    talk.insert(talk.end(), answer.begin(), answer.end());
  }
  EXPECT_GT(found, 100u);
  EXPECT_GT(engine_->cache().counters().evicted_pages, 10u) << "the pool is too small for all of them";
  EXPECT_EQ(failed_.size(), 0u);
}

TEST_F(SharingTest, PagesOfTheAnswerServeTheNextTurn) {
  std::vector<TokenId> talk = Prompt(1, 40);
  const auto [answer, none] = Ask(Of("a", talk, 40));
  EXPECT_EQ(none, 0u);
  talk.insert(talk.end(), answer.begin(), answer.end());
  // Of 80 tokens the last was sampled and never fed, so the fifth page is not full.
  talk.push_back(5);
  EXPECT_EQ(Ask(Of("a", talk, 4)).second, 4u);
}

TEST_F(SharingTest, I10_ADomainFindsOnlyItsOwnPages) {
  const std::vector<TokenId> prompt = Prompt(1, 100);
  const std::vector<TokenId> expected = Alone(Of("a", prompt, 10));
  EXPECT_EQ(Ask(Of("a", prompt, 10)).second, 0u);
  const auto [answer, cached] = Ask(Of("b", prompt, 10));
  EXPECT_EQ(cached, 0u);
  EXPECT_EQ(answer, expected);
  SequenceSpec salted = Of("a", prompt, 10);
  salted.domain = kv::DomainName("a", "pepper");
  salted.domain_key = kv::DomainKey({}, "a", "pepper");
  EXPECT_EQ(Ask(salted).second, 0u);
  for (const SequenceSpec& again : {Of("a", prompt, 10), Of("b", prompt, 10), salted}) EXPECT_EQ(Ask(again).second, 6u);
}

TEST_F(SharingTest, I5_TheLastTokenIsAlwaysComputedIntoAnOwnPage) {
  for (const size_t length : {16u, 17u, 32u, 33u}) {
    const std::vector<TokenId> prompt = Prompt(2, length);
    const std::vector<TokenId> expected = Alone(Of("a", prompt, 20));
    Ask(Of("a", prompt, 20));
    const auto [answer, cached] = Ask(Of("a", prompt, 20));
    EXPECT_EQ(cached, (length - 1) / kTokens) << length;
    EXPECT_EQ(answer, expected) << length;
  }
}

TEST_F(SharingTest, APrefillWhosePagesAreAllThereIsDoneAtOnce) {
  SequenceSpec spec = Of("a", Prompt(4, 64), 0);
  spec.sampling.reset();
  const SequenceId first = Start(spec);
  engine_->Run(first);
  StepAll();
  const SequenceId second = Start(spec);  // while the first still holds them
  engine_->Run(second);
  EXPECT_FALSE(engine_->HasWork());
  const std::vector<SealedEvent> pages = engine_->SealedPages(second);
  ASSERT_EQ(pages.size(), 4u);
  for (size_t i = 0; i < pages.size(); ++i) {
    EXPECT_EQ(pages[i].ordinal, i);
    EXPECT_EQ(pages[i].page, sealed_[first][i].page);
    EXPECT_EQ(pages[i].seal, sealed_[first][i].seal);
  }
  engine_->Release(first);
  engine_->Reclaim();
  EXPECT_EQ(In(kv::PageState::kSealed), 4u) << "the second reads them still";
  engine_->Release(second);
  EXPECT_EQ(In(kv::PageState::kCached), 4u);
}

TEST_F(SharingTest, I7_WhatNobodyUsesMakesRoomAndWhatIsUsedStays) {
  Ask(Of("a", Prompt(1, 300), 1));
  Ask(Of("b", Prompt(2, 300), 1));
  EXPECT_GT(In(kv::PageState::kCached), 30u);
  const SequenceId user = Start(Of("b", Prompt(2, 300), 4));
  EXPECT_EQ(engine_->CachedPages(user), 18u);
  const std::optional<SequenceId> big = StartWhenThereIsRoom(Of("c", Prompt(3, 480), 30));
  ASSERT_TRUE(big.has_value());
  EXPECT_EQ(Ask(Of("b", Prompt(2, 40), 1)).second, 2u);
  engine_->Run(user);
  engine_->Run(*big);
  StepAll();
  EXPECT_EQ(tokens_[user], Alone(Of("b", Prompt(2, 300), 4)));
  EXPECT_EQ(tokens_[*big], Alone(Of("c", Prompt(3, 480), 30)));
}

TEST_F(SharingTest, I12_WhoeverSharesABadPageEndsAndNobodyElse) {
  for (const auto mode : {VerifyReads::Mode::kTags, VerifyReads::Mode::kFull}) {
    engine_->SetVerifyReads({.mode = mode});
    const std::vector<TokenId> prompt = Prompt(7, 60);
    Ask(Of("a", prompt, 2));
    const SequenceId first = Start(Of("a", prompt, 30)), second = Start(Of("a", prompt, 30));
    const SequenceId other = Start(Of("b", prompt, 30));
    for (const SequenceId id : {first, second, other}) engine_->Run(id);
    StepOnce();
    const PageId page = engine_->PageAt(first, 1).page;
    ASSERT_EQ(engine_->PageAt(second, 1).page, page);
    pool_->Payload(page).data()[mode == VerifyReads::Mode::kTags ? -3 : 100] ^= std::byte{1};
    const size_t before = tokens_[first].size();
    StepAll();
    for (const SequenceId id : {first, second}) {
      EXPECT_EQ(failed_[id].code(), absl::StatusCode::kDataLoss);
      EXPECT_EQ(tokens_[id].size(), before) << "no token is sampled from a page that failed its check";
    }
    EXPECT_EQ(tokens_[other], Alone(Of("b", prompt, 30)));
    EXPECT_EQ(pool_->StateOf(page), kv::PageState::kQuarantined);
    const auto [answer, cached] = Ask(Of("a", prompt, 30));
    EXPECT_EQ(cached, 1u) << "what stands before the bad page is good";
    EXPECT_EQ(answer, Alone(Of("a", prompt, 30)));
  }
}

TEST_F(SharingTest, I6_TheScrubberFindsABadPageThatLiesInTheCache) {
  const std::vector<TokenId> prompt = Prompt(8, 60);
  const PageId page = SpoilCached(prompt, 2);
  std::vector<Event> events;
  engine_->Scrub(64 * pool_->layout().payload_bytes(), events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<CachedPageWrongEvent>(events[0]).wrong.page, page);
  EXPECT_EQ(Failed(kv::CheckKind::kScrub), 1u);
  EXPECT_EQ(pool_->StateOf(page), kv::PageState::kQuarantined);
  const auto [answer, cached] = Ask(Of("a", prompt, 30));
  EXPECT_EQ(cached, 2u);
  EXPECT_EQ(answer, Alone(Of("a", prompt, 30)));
}

TEST_F(SharingTest, I6_TheBytesOfACachedPageAreComparedWhenItIsUsedAgain) {
  const std::vector<TokenId> prompt = Prompt(8, 60);
  const PageId page = SpoilCached(prompt, 1);
  const auto [answer, cached] = Ask(Of("a", prompt, 30));
  EXPECT_EQ(cached, 1u) << "what stands before it";
  EXPECT_EQ(answer, Alone(Of("a", prompt, 30)));
  EXPECT_EQ(Failed(kv::CheckKind::kScrub), 1u);
  EXPECT_EQ(pool_->StateOf(page), kv::PageState::kQuarantined);
  EXPECT_EQ(Ask(Of("a", prompt, 2)).second, 3u) << "computed again, and good";
}

TEST_F(SharingTest, I12_WhoHoldsABadPageForReadersIsToldToo) {
  SequenceSpec spec = Of("a", Prompt(4, 64), 0);
  spec.sampling.reset();
  const SequenceId first = Start(spec);
  engine_->Run(first);
  StepAll();
  const PageId page = engine_->PageAt(first, 2).page;
  Flip(page, 10);
  const SequenceId second = Start(spec);
  EXPECT_EQ(engine_->CachedPages(second), 2u);
  engine_->Run(second);
  StepAll();
  EXPECT_EQ(failed_[first].code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(wrong_[first].size(), 1u);
  EXPECT_EQ(wrong_[first][0].page, page);
  EXPECT_FALSE(failed_.contains(second));
  EXPECT_EQ(engine_->SealedPages(second).size(), 4u);
  EXPECT_EQ(pool_->StateOf(page), kv::PageState::kQuarantined);
}

TEST_F(SharingTest, AFullCacheLeavesRoomAhead) {
  for (unsigned i = 0; i < 6; ++i) Ask(Of("a", Prompt(20 + i, 200), 1));
  for (int i = 0; i < 3; ++i) engine_->Reclaim();
  EXPECT_GE(In(kv::PageState::kFree), kPages / 16);
  EXPECT_GE(In(kv::PageState::kCached), kPages / 2);
}

TEST_F(SharingTest, PagesOfAWorkerThatWasWrongAreNotUsedAgain) {
  const std::vector<TokenId> prompt = Prompt(9, 70);
  constexpr uint64_t kPeer = 77;
  Peer peer(*this, Of("a", prompt, 0));
  const SequenceId sink = Start(Of("a", prompt, 30));
  Adopt(peer, sink, 0, 5, kPeer);
  ASSERT_TRUE(engine_->CheckAdopted(sink).ok());
  engine_->Run(sink);
  StepAll();
  EXPECT_EQ(tokens_[sink], Alone(Of("a", prompt, 30)));
  EXPECT_EQ(Ask(Of("b", prompt, 4)).second, 0u);
  const SequenceId again = Start(Of("a", prompt, 30));
  EXPECT_EQ(engine_->CachedPages(again), 4u);
  EXPECT_EQ(engine_->CachedPagesOfPeers(again), 4u);
  // Six pages were filled: four and a half by the peer, the rest behind them. Those of the other domain are our own.
  EXPECT_EQ(engine_->DropOrigin(kPeer), 6u);
  EXPECT_EQ(engine_->DropOrigin(kPeer), 0u);
  EXPECT_EQ(Ask(Of("a", prompt, 4)).second, 0u);
  EXPECT_EQ(Ask(Of("b", prompt, 4)).second, 4u);
  engine_->Run(again);
  StepAll();
  EXPECT_EQ(tokens_[again], Alone(Of("a", prompt, 30))) << "who holds such pages already is judged by the checks";
}

TEST_F(SharingTest, CachedPagesAreHeldForReadersAllOrNoneAndNothingIsReserved) {
  const std::vector<TokenId> prompt = Prompt(12, 5 * 16 + 3);
  Ask(Of("a", prompt, 2));
  const uint64_t reserved = pool_->counts().reserved_total;
  EXPECT_FALSE(Hold("b", prompt, 2 * 16).has_value()) << "another domain's";
  EXPECT_FALSE(Hold("a", prompt, 2 * 16 + 1).has_value()) << "a partial page is never shared";
  EXPECT_FALSE(Hold("a", prompt, 0).has_value());
  EXPECT_FALSE(Hold("a", Prompt(13, 2 * 16), 2 * 16).has_value()) << "other tokens";
  const std::optional<SequenceId> held = Hold("a", prompt, 5 * 16);
  ASSERT_TRUE(held.has_value());
  EXPECT_EQ(engine_->SealedPages(*held).size(), 5u);
  EXPECT_EQ(pool_->counts().reserved_total, reserved);
  EXPECT_EQ(Indexed("a", prompt), 5u);
  EXPECT_EQ(Indexed("b", prompt), 0u);
  // They can not be evicted under their reader.
  std::vector<SequenceId> others;
  for (unsigned seed = 20; const auto other = StartWhenThereIsRoom(Of("c", Prompt(seed, 8 * 16), 1)); ++seed)
    others.push_back(*other);
  EXPECT_GE(others.size(), (kPages - 5) / 9);
  EXPECT_EQ(Indexed("a", prompt), 5u);
  for (const SequenceId other : others) engine_->Release(other);
  engine_->Release(*held);
  EXPECT_EQ(engine_->ForgetCached(Of("a", prompt, 2)), 5u);
  EXPECT_EQ(Indexed("a", prompt), 0u);
}

TEST_F(SharingTest, AHeldPageThatIsBadIsFoundBeforeAReaderHearsOfIt) {
  const std::vector<TokenId> prompt = Prompt(15, 4 * 16 + 3);
  SpoilCached(prompt, 2);
  EXPECT_FALSE(Hold("a", prompt, 4 * 16).has_value());
  const std::optional<SequenceId> held = Hold("a", prompt, 2 * 16);
  EXPECT_TRUE(held.has_value()) << "what comes before it is good";
  engine_->Release(held.value_or(SequenceId()));
}

TEST_F(SharingTest, AdoptedPagesAreFoundBeforeTheirSequenceRunsAndMoreMayFollow) {
  const std::vector<TokenId> prompt = Prompt(16, 70);
  Peer peer(*this, Of("a", prompt, 0));
  const SequenceId sink = Start(Of("a", prompt, 30));
  Adopt(peer, sink, 0, 3, 71);
  EXPECT_FALSE(Hold("a", prompt, 3 * 16).has_value()) << "nobody has checked them";
  ASSERT_TRUE(engine_->CheckAdopted(sink).ok());
  const uint64_t checked = Made(kv::CheckKind::kContent);
  engine_->ShareAdopted(sink);
  const std::optional<SequenceId> held = Hold("a", prompt, 3 * 16);
  ASSERT_TRUE(held.has_value());
  Adopt(peer, sink, 3, 5, 72);
  ASSERT_TRUE(engine_->CheckAdopted(sink).ok());
  EXPECT_EQ(Made(kv::CheckKind::kContent), checked + 2) << "each page once";
  engine_->Run(sink);
  StepAll();
  EXPECT_EQ(tokens_[sink], Alone(Of("a", prompt, 30)));
  engine_->Release(*held);
  EXPECT_EQ(engine_->DropOrigin(72), 3u) << "a whole one of the second worker, and what was computed behind it";
  EXPECT_EQ(Ask(Of("a", prompt, 4)).second, 3u);
}

}  // namespace
}  // namespace cofferdam::engine
