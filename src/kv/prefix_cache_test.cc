#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "kv/admission.h"

namespace cofferdam::kv {
namespace {

using Path = std::vector<PrefixCache::Pin>;

class PrefixCacheTest : public testing::Test {
 protected:
  static constexpr uint64_t kPages = 24;
  static constexpr uint32_t kTokens = 16;

  explicit PrefixCacheTest(uint64_t pages = kPages)
      : memory_(pages * layout_.page_bytes()),
        pool_(layout_, memory_, 42, ReuseOrder::kLifo),
        admission_("decode worker", layout_, 10'000),
        cache_(pool_) {}
  ~PrefixCacheTest() override {
    cache_.Clear(epoch_);
    pool_.Reclaim(epoch_);
    pool_.CheckConservation();
    EXPECT_EQ(In(PageState::kFree) + In(PageState::kQuarantined), pool_.total_pages());
  }

  static Domain DomainOf(const std::string& name) { return {.name = name, .key = DomainKey(Key{}, name)}; }
  // Whole pages of tokens, each page of one value.
  static std::vector<TokenId> Tokens(std::initializer_list<TokenId> pages) {
    std::vector<TokenId> tokens;
    for (const TokenId value : pages) tokens.insert(tokens.end(), kTokens, value);
    return tokens;
  }
  PageHandle Sealed(const Digest128& identity) {
    AdmissionResult result = admission_.Admit({.prompt_tokens = kTokens}, pool_.counts());
    PageHandle handle = std::move((*pool_.Reserve(std::get<Admitted>(std::move(result))))[0]);
    pool_.MarkFilling(handle);
    pool_.SealPage(handle, identity, kTokens);
    return handle;
  }
  // As a sequence does: looks up, computes the rest, and puts it in. The pins are the caller's.
  Path Compute(const Domain& domain, const std::vector<TokenId>& tokens, uint64_t origin = 0) {
    Path path = cache_.Acquire(domain, tokens, tokens.size());
    const std::vector<Digest128> identities = PageIdentities(domain.key, layout_, tokens);
    for (size_t i = path.size(); i < identities.size(); ++i) {
      auto result = cache_.Insert(domain, i == 0 ? nullptr : &path[i - 1], std::span(tokens).subspan(i * kTokens, kTokens),
                                  Sealed(identities[i]), origin);
      path.push_back(std::get<PrefixCache::Pin>(std::move(result)));
    }
    return path;
  }
  void Give(Path path) {
    while (!path.empty()) {
      cache_.Unpin(std::move(path.back()), epoch_);
      path.pop_back();
    }
  }
  size_t Hits(const Domain& domain, const std::vector<TokenId>& tokens) {
    Path path = cache_.Acquire(domain, tokens, tokens.size());
    const size_t pages = path.size();
    Give(std::move(path));
    return pages;
  }
  uint64_t In(PageState state) const { return pool_.counts().by_state[static_cast<size_t>(state)]; }

  Layout layout_ = *Layout::Make({.model_hash = "m",
                                  .rope_settings = "",
                                  .layers = 1,
                                  .kv_heads = 1,
                                  .head_size_k = 8,
                                  .head_size_v = 8,
                                  .page_tokens = kTokens});
  std::vector<std::byte> memory_;
  Pool pool_;
  Admission admission_;
  PrefixCache cache_;
  const StepEpoch epoch_{1};
  const Domain a_ = DomainOf("a"), b_ = DomainOf("b");
};

TEST_F(PrefixCacheTest, TheLongestPathIsFoundAndPinned) {
  Give(Compute(a_, Tokens({1, 2, 3})));
  EXPECT_EQ(In(PageState::kCached), 3u);
  Path path = cache_.Acquire(a_, Tokens({1, 2, 4, 3}), 10);
  EXPECT_EQ(path.size(), 2u);
  EXPECT_EQ(In(PageState::kCached), 1u);
  EXPECT_EQ(In(PageState::kSealed), 2u);
  cache_.CheckConsistency();
  Give(std::move(path));
  EXPECT_EQ(Hits(a_, Tokens({2, 3})), 0u) << "a path begins at the first page";
  std::vector<TokenId> part = Tokens({1, 2});
  part.pop_back();
  EXPECT_EQ(Hits(a_, part), 1u) << "only whole pages are found";
  Path limited = cache_.Acquire(a_, Tokens({1, 2, 3}), 1);
  EXPECT_EQ(limited.size(), 1u);
  Give(std::move(limited));
}

TEST_F(PrefixCacheTest, I10_NothingIsFoundAcrossDomains) {
  Give(Compute(a_, Tokens({1, 2})));
  EXPECT_EQ(Hits(b_, Tokens({1, 2})), 0u);
  // Each half alone is enough: another name with the same key, and another key under the same name.
  EXPECT_EQ(Hits({.name = "b", .key = a_.key}, Tokens({1, 2})), 0u);
  EXPECT_EQ(Hits({.name = "a", .key = b_.key}, Tokens({1, 2})), 0u);
  // A salt narrows a domain, and takes no part of it for itself.
  const Domain salted{.name = DomainName("a", "s"), .key = DomainKey(Key{}, "a", "s")};
  EXPECT_EQ(Hits(salted, Tokens({1, 2})), 0u);
  EXPECT_NE(DomainKey(Key{}, "as", ""), DomainKey(Key{}, "a", "s"));
  EXPECT_NE(DomainName("as", ""), DomainName("a", "s"));
  Give(Compute(salted, Tokens({1, 2})));
  EXPECT_EQ(Hits(salted, Tokens({1, 2})), 2u);
  EXPECT_EQ(Hits(a_, Tokens({1, 2})), 2u);
}

TEST_F(PrefixCacheTest, I10_TokensAreComparedAndNotOnlyTheirHash) {
  const Digest128 identity = PageIdentities(a_.key, layout_, Tokens({1}))[0];
  auto result = cache_.Insert(a_, nullptr, Tokens({9}), Sealed(identity), 0);  // two prompts with one identity
  cache_.Unpin(std::get<PrefixCache::Pin>(std::move(result)), epoch_);
  EXPECT_EQ(Hits(a_, Tokens({1})), 0u);
}

TEST_F(PrefixCacheTest, TheSecondOfTwoEqualPagesStaysItsOwners) {
  Path path = Compute(a_, Tokens({1}));
  auto again = cache_.Insert(a_, nullptr, Tokens({1}), Sealed(PageIdentities(a_.key, layout_, Tokens({1}))[0]), 0);
  ASSERT_TRUE(std::holds_alternative<PageHandle>(again));
  pool_.Release(std::get<PageHandle>(std::move(again)), epoch_);
  Give(std::move(path));
  EXPECT_EQ(Hits(a_, Tokens({1})), 1u);
}

TEST_F(PrefixCacheTest, I7_PinnedPagesAreNotEvictedAndOthersGoLastPagesAndOldestFirst) {
  Give(Compute(a_, Tokens({1, 2, 3})));
  Path used = Compute(a_, Tokens({1, 5}));
  EXPECT_EQ(cache_.evictable_pages(), 2u);
  EXPECT_EQ(cache_.Evict(1, epoch_), 1u);
  EXPECT_EQ(Hits(a_, Tokens({1, 2, 3})), 2u);
  EXPECT_EQ(cache_.Evict(10, epoch_), 1u);
  EXPECT_EQ(Hits(a_, Tokens({1, 2, 3})), 1u);
  EXPECT_EQ(Hits(a_, Tokens({1, 5})), 2u);
  cache_.CheckConsistency();
  Give(std::move(used));
  Give(Compute(a_, Tokens({7})));
  EXPECT_EQ(Hits(a_, Tokens({1, 5})), 2u);  // used again: {7} is older now
  EXPECT_EQ(cache_.Evict(1, epoch_), 1u);
  EXPECT_EQ(Hits(a_, Tokens({7})), 0u);
  EXPECT_EQ(Hits(a_, Tokens({1, 5})), 2u);
}

TEST_F(PrefixCacheTest, AmongDomainsThatHoldTheSameTheOldestPagesGo) {
  std::vector<Domain> domains;
  for (int i = 0; i < 8; ++i) domains.push_back(DomainOf("d" + std::to_string(i)));
  for (const Domain& domain : domains) Give(Compute(domain, Tokens({1, 2})));
  EXPECT_EQ(Hits(domains[0], Tokens({1, 2})), 2u);  // used again
  EXPECT_EQ(cache_.Evict(4, epoch_), 4u);
  for (const size_t kept : {0, 5, 6, 7}) EXPECT_EQ(Hits(domains[kept], Tokens({1, 2})), 2u) << kept;
}

TEST_F(PrefixCacheTest, EvictionTakesFromDomainsThatHoldMoreThanTheirShare) {
  Give(Compute(b_, Tokens({1, 2})));  // older, and fewer
  Give(Compute(a_, Tokens({1, 2, 3, 4, 5, 6})));
  EXPECT_EQ(cache_.Evict(4, epoch_), 4u);
  EXPECT_EQ(Hits(b_, Tokens({1, 2})), 2u);
  EXPECT_EQ(Hits(a_, Tokens({1, 2, 3, 4, 5, 6})), 2u);
}

// One tenant may open more isolation domains than an eviction looks at.
class ManyDomainsTest : public PrefixCacheTest {
 protected:
  ManyDomainsTest() : PrefixCacheTest(100) {}
};

TEST_F(ManyDomainsTest, PastTooManySmallDomainsTheLargestGivesAPage) {
  for (int i = 0; i < 70; ++i) Give(Compute(DomainOf("small" + std::to_string(i)), Tokens({1})));  // older
  Give(Compute(a_, Tokens({1, 2, 3, 4, 5, 6})));
  EXPECT_EQ(cache_.Evict(4, epoch_), 4u);
  EXPECT_EQ(Hits(a_, Tokens({1, 2, 3, 4, 5, 6})), 2u);
  for (int i = 0; i < 70; ++i) EXPECT_EQ(Hits(DomainOf("small" + std::to_string(i)), Tokens({1})), 1u) << i;
  cache_.CheckConsistency();
}

TEST_F(PrefixCacheTest, I10_APageIsFoundOnlyBehindThePageThatItWasComputedBehind) {
  const Digest128 second = PageIdentities(a_.key, layout_, Tokens({1, 2}))[1];
  auto first = cache_.Insert(a_, nullptr, Tokens({2}), Sealed(second), 0);  // takes the name of a second page
  cache_.Unpin(std::get<PrefixCache::Pin>(std::move(first)), epoch_);
  const Digest128 identity = PageIdentities(a_.key, layout_, Tokens({1}))[0];
  auto before = cache_.Insert(a_, nullptr, Tokens({1}), Sealed(identity), 0);
  cache_.Unpin(std::get<PrefixCache::Pin>(std::move(before)), epoch_);
  EXPECT_EQ(Hits(a_, Tokens({1, 2})), 1u);
}

TEST_F(PrefixCacheTest, I10_APageOfOneDomainFindsNoPlaceBehindThatOfAnother) {
  Path path = Compute(a_, Tokens({1}));
  auto behind = cache_.Insert(b_, &path[0], Tokens({2}), Sealed({}), 0);
  ASSERT_TRUE(std::holds_alternative<PageHandle>(behind));
  pool_.Release(std::get<PageHandle>(std::move(behind)), epoch_);
  EXPECT_EQ(cache_.pages(), 1u);
  Give(std::move(path));
}

TEST_F(PrefixCacheTest, I2_APinMovesAndIsHeldOnce) {
  Path path = Compute(a_, Tokens({1}));
  PrefixCache::Pin pin;
  pin = std::move(path[0]);
  EXPECT_TRUE(pin.held());
  EXPECT_FALSE(path[0].held());
  PrefixCache::Pin& same = pin;
  pin = std::move(same);
  EXPECT_TRUE(pin.held()) << "moved to itself";
  EXPECT_EQ(pin.origin(), 0u);
  cache_.Unpin(std::move(pin), epoch_);
  EXPECT_EQ(In(PageState::kCached), 1u);
}

TEST_F(PrefixCacheTest, TheScrubberGoesFromPageToPageAndEnds) {
  EXPECT_EQ(cache_.NextPage(PageId()), nullptr);
  Give(Compute(a_, Tokens({1, 2, 3})));
  size_t found = 0;
  for (const PageHandle* next = cache_.NextPage(PageId()); next != nullptr;
       next = cache_.NextPage(PageId(next->page().value() + 1))) {
    EXPECT_EQ(pool_.StateOf(next->page()), PageState::kCached);
    ++found;
  }
  EXPECT_EQ(found, 3u);
}

TEST_F(PrefixCacheTest, OtherThreadsAreToldHowMuchOfAPathIsHeld) {
  Give(Compute(a_, Tokens({1, 2})));
  const std::vector<Digest128> asked = PageIdentities(a_.key, layout_, Tokens({1, 2, 3}));
  EXPECT_EQ(cache_.index().CountPrefix(asked), 2u);
  EXPECT_EQ(cache_.index().CountPrefix(std::span(asked).first(2)), 2u);
  EXPECT_EQ(cache_.index().CountPrefix(std::span(asked).subspan(2)), 0u);
  EXPECT_EQ(cache_.Evict(2, epoch_), 2u);
  EXPECT_EQ(cache_.index().CountPrefix(asked), 0u);
}

TEST_F(PrefixCacheTest, I12_ABadPageIsNeverFoundAgainNorWhatWasComputedBehindIt) {
  Path reader = Compute(a_, Tokens({1, 2, 3}));
  Give(Compute(a_, Tokens({1, 2, 4})));
  const PageId bad = reader[1].handle().page();
  cache_.Condemn(bad, epoch_);
  EXPECT_TRUE(reader[1].bad());
  EXPECT_FALSE(reader[0].bad());
  EXPECT_EQ(Hits(a_, Tokens({1, 2, 3})), 1u);
  EXPECT_EQ(pool_.StateOf(bad), PageState::kSealed) << "while somebody holds it";
  // What is behind such a page finds no place in the tree any more.
  auto behind = cache_.Insert(a_, &reader[2], Tokens({8}), Sealed({}), 0);
  ASSERT_TRUE(std::holds_alternative<PageHandle>(behind));
  pool_.Release(std::get<PageHandle>(std::move(behind)), epoch_);
  cache_.CheckConsistency();
  Give(std::move(reader));
  EXPECT_EQ(pool_.StateOf(bad), PageState::kQuarantined);
  EXPECT_EQ(In(PageState::kQuarantined), 1u);
  EXPECT_EQ(cache_.pages(), 1u);
}

TEST_F(PrefixCacheTest, I12_EveryBadPageOfAPathIsQuarantinedAlsoOnesThatWereDroppedBefore) {
  Path path = Compute(a_, Tokens({1, 2, 3, 4}), 77);
  cache_.DropOrigin(77, epoch_);
  const PageId bad[] = {path[1].handle().page(), path[3].handle().page()};
  for (const PageId page : bad) cache_.Condemn(page, epoch_);
  EXPECT_TRUE(path[1].bad() && path[3].bad() && !path[0].bad() && !path[2].bad());
  Give(std::move(path));
  EXPECT_EQ(In(PageState::kQuarantined), 2u);
}

TEST_F(PrefixCacheTest, WhatIsForgottenIsNotFoundAndOthersStay) {
  Give(Compute(a_, Tokens({1, 2})));
  Give(Compute(a_, Tokens({3, 2})));
  EXPECT_EQ(cache_.Forget(b_, Tokens({1, 2}), epoch_), 0u);
  EXPECT_EQ(cache_.Forget(a_, Tokens({8}), epoch_), 0u);
  EXPECT_EQ(cache_.Forget(a_, std::vector<TokenId>(kTokens - 1, 1), epoch_), 0u) << "less than a page names nothing";
  EXPECT_EQ(cache_.Forget(a_, Tokens({1, 7}), epoch_), 2u);
  EXPECT_EQ(Hits(a_, Tokens({1, 2})), 0u);
  EXPECT_EQ(Hits(a_, Tokens({3, 2})), 2u);
}

TEST_F(PrefixCacheTest, ATenantWithManySaltsPushesOutItsOwnPages) {
  Give(Compute(b_, Tokens({1, 2, 3, 4})));
  for (int i = 0; i < 10; ++i) {
    const std::string salt = std::to_string(i);
    Give(Compute({.name = DomainName("a", salt), .key = DomainKey(Key{}, "a", salt)}, Tokens({1, 2})));
  }
  EXPECT_EQ(cache_.Evict(15, epoch_), 15u);
  EXPECT_EQ(Hits(b_, Tokens({1, 2, 3, 4})), 4u);
  cache_.CheckConsistency();
}

TEST_F(PrefixCacheTest, WhatCameFromAWorkerThatIsWrongIsDropped) {
  Give(Compute(a_, Tokens({1})));
  Path pinned = Compute(a_, Tokens({1, 2}), 77);
  Give(Compute(a_, Tokens({1, 2, 3}), 0));  // computed from what that worker sent
  Give(Compute(b_, Tokens({4, 5}), 77));
  Give(Compute(b_, Tokens({6}), 78));
  EXPECT_EQ(cache_.DropOrigin(77, epoch_), 4u);
  EXPECT_EQ(Hits(a_, Tokens({1, 2, 3})), 1u);
  EXPECT_EQ(Hits(b_, Tokens({4, 5})), 0u);
  EXPECT_EQ(Hits(b_, Tokens({6})), 1u);
  EXPECT_EQ(In(PageState::kQuarantined), 0u) << "the fault is the source's";
  Give(std::move(pinned));
}

TEST_F(PrefixCacheTest, I9_AnyOrderOfUsesKeepsEveryPageAccountedFor) {
  std::mt19937 random(20261202);
  auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<Path> held;
  uint64_t hits = 0, evicted = 0, condemned = 0;
  for (int i = 0; i < 20'000; ++i) {
    const int what = draw(1000);
    if (what < 420) {
      std::vector<TokenId> tokens;
      for (int page = draw(4); page >= 0; --page) tokens.insert(tokens.end(), kTokens, draw(3));
      const Domain& domain = draw(2) == 0 ? a_ : b_;
      Path path = cache_.Acquire(domain, tokens, 8);
      hits += path.size();
      const std::vector<Digest128> identities = PageIdentities(domain.key, layout_, tokens);
      for (size_t p = 0; p < path.size(); ++p) {
        ASSERT_EQ(pool_.SealOf(path[p].handle()).identity, identities[p]);
        ASSERT_FALSE(path[p].bad());
      }
      while (path.size() < identities.size() && pool_.counts().free() > 0) {
        const size_t p = path.size();
        auto result = cache_.Insert(domain, p == 0 ? nullptr : &path[p - 1], std::span(tokens).subspan(p * kTokens, kTokens),
                                    Sealed(identities[p]), static_cast<uint64_t>(draw(3)));
        path.push_back(std::get<PrefixCache::Pin>(std::move(result)));
      }
      held.push_back(std::move(path));
    } else if (what < 850 && !held.empty()) {
      std::swap(held[static_cast<size_t>(draw(static_cast<int>(held.size())))], held.back());
      Give(std::move(held.back()));
      held.pop_back();
    } else if (what < 996) {
      const uint64_t most = static_cast<uint64_t>(draw(4)), evictable = cache_.evictable_pages();
      ASSERT_EQ(cache_.Evict(most, epoch_), std::min(most, evictable));
      evicted += std::min(most, evictable);
      pool_.Reclaim(epoch_);
    } else if (what < 999) {
      cache_.DropOrigin(static_cast<uint64_t>(1 + draw(2)), epoch_);
    } else if (condemned < 8 && cache_.pages() > 0) {
      cache_.Condemn(cache_.NextPage(PageId())->page(), epoch_);
      ++condemned;
    }
    cache_.CheckConsistency();
    pool_.CheckConservation();
  }
  EXPECT_GT(hits, 1000u);
  EXPECT_GT(evicted, 1000u);
  for (Path& path : held) Give(std::move(path));
  EXPECT_EQ(In(PageState::kQuarantined), condemned);
}

}  // namespace
}  // namespace cofferdam::kv
