// Sequences that grow page by page in a pool that is too small for all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "engine/engine_testing.h"

namespace cofferdam::engine {
namespace {

constexpr uint32_t kFirst = 8;  // tokens of an output that are reserved at its start
constexpr uint32_t kPageTokens = 16;

// Story: requests over a pool of `Pages()` pages. Whoever is preempted waits with the others, and is started again as a worker
// does.
class GrowthTest : public EngineTest {
 protected:
  struct Request {
    SequenceSpec spec;
    std::vector<TokenId> answer;
    int preempted = 0;
    uint64_t came = 0, went = 0;  // in turns
    bool ended = false;
  };

  EngineOptions Options() const override {
    return {
        .role = "test worker", .context_tokens = 512, .chunk_tokens = 64, .first_output_tokens = kFirst, .prefix_cache = cache_};
  }
  // A new engine over the first `pages` pages.
  void Use(uint64_t pages, bool cache) {
    cache_ = cache;
    engine_.reset();
    pool_->Reclaim(StepEpoch(~uint64_t{0}));
    small_ = std::make_unique<kv::Pool>(model_->layout(), pool_memory().first(pages * model_->layout().page_bytes()), 9,
                                        kv::ReuseOrder::kLifo);
    engine_ = std::make_unique<Engine>(Options(), *executor_, *small_);
  }
  std::span<std::byte> pool_memory() {
    return {pool_->Payload(PageId(0)).data() - kv::kTagBytes, kPages * model_->layout().page_bytes()};
  }
  void TearDown() override {
    if (engine_ == nullptr) return;
    engine_.reset();
    if (small_ != nullptr) {
      small_->Reclaim(StepEpoch(~uint64_t{0}));
      EXPECT_EQ(small_->counts().free() + small_->counts().by_state[static_cast<size_t>(kv::PageState::kQuarantined)],
                small_->total_pages());
      small_.reset();
    }
  }

  SequenceSpec Of(unsigned seed, size_t prompt, uint32_t output, uint64_t order) {
    SequenceSpec spec = Spec(Prompt(seed, prompt), output);
    spec.domain = "tenant";
    spec.order = order;
    if (seed % 2 == 1) {
      spec.sampling = model::SamplingParams{
          .temperature = 1, .repetition_penalty = 1.1F, .presence_penalty = 0.2F, .frequency_penalty = 0.1F, .seed = seed};
    }
    return spec;
  }

  void Ask(SequenceSpec spec) {
    waiting_.emplace(spec.order, requests_.size());
    requests_.push_back({.spec = std::move(spec), .answer = {}, .came = turns_});
  }
  void StartWaiting() {
    while (!waiting_.empty()) {
      Request& request = requests_[waiting_.begin()->second];
      auto started = engine_->Start(request.spec);
      if (std::holds_alternative<kv::MustWait>(started)) return;
      ASSERT_TRUE(std::holds_alternative<Engine::Started>(started));
      const SequenceId id = std::get<Engine::Started>(started).sequence;
      by_sequence_[id] = waiting_.begin()->second;
      waiting_.erase(waiting_.begin());
      engine_->Run(id);
    }
  }
  void Turn() {
    StartWaiting();
    engine_->Reclaim();
    std::vector<Event> events;
    engine_->Step(events);
    ++turns_;
    for (const Event& event : events) {
      const auto found = by_sequence_.find(SequenceOf(event));
      ASSERT_NE(found, by_sequence_.end());
      Request& request = requests_[found->second];
      if (const auto* token = std::get_if<TokenEvent>(&event)) {
        EXPECT_EQ(token->index, request.answer.size()) << "no token twice, and none left out";
        request.answer.push_back(token->token);
      }
      request.ended = request.ended || std::holds_alternative<FinishedEvent>(event) || std::holds_alternative<FailedEvent>(event);
      request.went = turns_;
      if (const auto* failed = std::get_if<FailedEvent>(&event)) failed_[failed->sequence] = failed->status;
      if (const auto* preempted = std::get_if<PreemptedEvent>(&event)) {
        ++request.preempted;
        request.spec.tokens.insert(request.spec.tokens.end(), preempted->generated.begin(), preempted->generated.end());
        const auto generated = static_cast<uint32_t>(preempted->generated.size());
        request.spec.resumed_tokens += generated;
        request.spec.max_output -= generated;
        waiting_.emplace(request.spec.order, found->second);
      }
    }
  }
  // False: it has ended before.
  bool CutOff(size_t index) {
    Request& request = requests_[index];
    for (const auto& [id, of] : by_sequence_) {
      if (of == index) engine_->Release(id);
    }
    if (std::exchange(request.ended, true)) return false;
    waiting_.erase({request.spec.order, index});
    return true;
  }
  bool AllEnded() const { return std::ranges::all_of(requests_, &Request::ended); }
  // Ends with the turn in which the last one ends.
  void RunAll(uint64_t most_turns) {
    uint64_t turns = 0;
    while (!AllEnded() && turns < most_turns) {
      Turn();
      if (++turns % 64 == 0) engine_->cache().CheckConsistency();
    }
    EXPECT_TRUE(AllEnded()) << "after " << turns << " turns";
  }

  bool cache_ = false;
  uint64_t turns_ = 0;
  std::unique_ptr<kv::Pool> small_;
  std::vector<Request> requests_;
  std::set<std::pair<uint64_t, size_t>> waiting_;
  std::map<SequenceId, size_t> by_sequence_;
};

TEST_F(GrowthTest, AnAnswerGrowsPageByPage) {
  Use(16, false);
  const SequenceSpec spec = Of(2, 20, 100, 0);
  const std::vector<TokenId> expected = Alone(spec);
  Ask(spec);
  StartWaiting();
  EXPECT_EQ(small_->counts().free(), 14u) << "20 tokens and 8 of the output: two pages of eight";
  RunAll(1000);
  EXPECT_EQ(requests_[0].answer, expected);
  EXPECT_EQ(engine_->counters().pages_grown, (20 + expected.size() - 1 + kPageTokens - 1) / kPageTokens - 2);
  EXPECT_EQ(engine_->counters().preemptions, 0u);
}

TEST_F(GrowthTest, I11_TheYoungestYieldsAndNoAnswerChanges) {
  for (const bool cache : {false, true}) {
    Use(9, cache);
    requests_.clear();
    std::vector<std::vector<TokenId>> expected;
    for (unsigned i = 0; i < 3; ++i) {
      Ask(Of(10 + i, 20 + i, 100, i));
      expected.push_back(Alone(requests_.back().spec));
    }
    RunAll(5000);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(requests_[i].answer, expected[i]) << i << " " << cache;
    EXPECT_EQ(requests_[0].preempted, 0) << "the oldest never yields";
    EXPECT_GT(requests_[1].preempted + requests_[2].preempted, 0) << "the pool is too small for all";
    EXPECT_GT(engine_->counters().preempted_tokens, 0u);
  }
}

TEST_F(GrowthTest, TheOrderAndNotTheComingDecidesWhoYields) {
  Use(8, false);
  Ask(Of(20, 20, 90, 5));
  StartWaiting();
  Ask(Of(21, 20, 90, 1));
  RunAll(5000);
  EXPECT_GT(requests_[0].preempted, 0);
  EXPECT_EQ(requests_[1].preempted, 0);
}

// The pool holds one context and not a page more: whoever is admitted beside it must be able to go.
TEST_F(GrowthTest, NoCircularWait_TheSmallestPoolThatAdmitsServesAll) {
  Use(4, true);
  std::vector<std::vector<TokenId>> expected;
  for (unsigned i = 0; i < 12; ++i) {
    Ask(Of(30 + i, 1 + i, 64 - 1 - i, i));
    expected.push_back(Alone(requests_.back().spec));
  }
  RunAll(20'000);
  for (size_t i = 0; i < requests_.size(); ++i) EXPECT_EQ(requests_[i].answer, expected[i]) << i;
}

TEST_F(GrowthTest, ASequenceThatWaitsForPagesRunsNoRowAndIsSeenToWait) {
  Use(6, false);
  Ask(Of(40, 20, 60, 0));
  StartWaiting();
  // Holds the rest of the pool, as a handoff does, and cannot be preempted.
  const SequenceId other = Start(Of(41, 40, 8, 1));
  for (int i = 0; i < 200 && !engine_->Stalled(); ++i) Turn();
  ASSERT_TRUE(engine_->Stalled());
  const uint64_t rows = engine_->counters().rows;
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_EQ(engine_->counters().rows, rows);
  engine_->Release(other);
  RunAll(1000);
  EXPECT_EQ(requests_[0].answer, Alone(requests_[0].spec));
}

TEST_F(GrowthTest, APoolThatShrankUnderAnAnswerEndsItWithAnError) {
  Use(5, false);
  Ask(Of(50, 20, 60, 0));
  StartWaiting();
  Turn();
  const SequenceId other = Start(Of(51, 20, 8, 1));
  const PageId bad = engine_->PageAt(other, 0).page;
  small_->Payload(bad).data()[-1] ^= std::byte{1};
  engine_->Run(other);
  by_sequence_[other] = requests_.size();
  requests_.push_back({.spec = Of(51, 20, 8, 1), .answer = {}});
  RunAll(1000);
  ASSERT_EQ(failed_.size(), 2u);
  EXPECT_TRUE(absl::IsDataLoss(failed_.at(other)));
  failed_.erase(other);
  EXPECT_TRUE(absl::IsUnavailable(failed_.begin()->second)) << failed_.begin()->second;
}

// Ten thousand requests over a pool that fits three, in mixed order, some of them cut off on the way.
TEST_F(GrowthTest, TenThousandRequestsOverAPoolForThreeAllEnd) {
  Use(12, true);
  std::mt19937 random(7);
  constexpr size_t kKinds = 40, kRequests = 10'000, kBacklog = 8;
  std::vector<std::vector<TokenId>> expected;
  std::vector<SequenceSpec> kinds;
  for (unsigned i = 0; i < kKinds; ++i) {
    kinds.push_back(Of(100 + i, 1 + random() % 20, 30 + static_cast<uint32_t>(random() % 40), 0));
    expected.push_back(Alone(kinds.back()));
  }
  size_t right = 0, cut = 0, preempted = 0;
  uint64_t longest = 0;
  std::vector<size_t> kind_of;
  std::set<size_t> open;
  for (size_t asked = 0; asked < kRequests || !open.empty();) {
    while (asked < kRequests && open.size() < kBacklog) {
      const size_t kind = random() % kKinds;
      SequenceSpec spec = kinds[kind];
      spec.order = turns_ + random() % 3 * 100;  // a priority: served as one that comes so much later
      open.insert(requests_.size());
      kind_of.push_back(kind);
      Ask(std::move(spec));
      ++asked;
    }
    Turn();
    if (turns_ % 1000 == 0) engine_->cache().CheckConsistency();
    ASSERT_LT(turns_, 1'000'000u);
    if (random() % 64 == 0) {  // a client leaves
      const size_t index = *std::next(open.begin(), static_cast<ptrdiff_t>(random() % open.size()));
      if (CutOff(index)) {
        ++cut;
        open.erase(index);
      }
    }
    for (auto it = open.begin(); it != open.end();) {
      Request& request = requests_[*it];
      if (!request.ended) {
        ++it;
        continue;
      }
      ASSERT_EQ(request.answer, expected[kind_of[*it]]) << *it;
      ++right;
      preempted += request.preempted > 0 ? 1 : 0;
      longest = std::max(longest, request.went - request.came);
      it = open.erase(it);
    }
    std::erase_if(by_sequence_, [&](const auto& entry) { return requests_[entry.second].ended; });
  }
  EXPECT_EQ(right + cut, kRequests);
  EXPECT_GT(cut, 100u);
  EXPECT_GT(preempted, 100u);
  EXPECT_TRUE(failed_.empty());
  // At most 200 turns of requests that came later stand before one, with what is open then, each of at most 60 rows, and again
  // what preemption cost them.
  EXPECT_LT(longest, 1500u);
  RecordProperty("longest_wait_turns", static_cast<int>(longest));
  std::printf("%zu right, %zu cut off, %zu preempted, longest wait %lu of %lu turns\n", right, cut, preempted, longest, turns_);
}

}  // namespace
}  // namespace cofferdam::engine
