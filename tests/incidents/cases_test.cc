// Public failures of other engines, by their class and number, where timing must be exact: both engines and both sides of the
// handoff in one thread, with messages, reads and the clock in the test's hand. Each test would fail on the behaviour reported.
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "incidents/duo.h"
#include "small_model.h"

namespace cofferdam::incidents {
namespace {

using oracle::Prompt;
using oracle::SmallModel;
using std::chrono::milliseconds;

constexpr size_t kPrompt = 100;  // six full pages and one of three tokens
constexpr size_t kPages = 7;

class Cases : public testing::Test {
 protected:
  Cases() : duo_(SmallModel(), {.prefill_chunk_tokens = 16}) {}
  ~Cases() override {
    EXPECT_EQ(duo_.Failed(kv::CheckKind::kTags), 0);
    EXPECT_EQ(duo_.Failed(kv::CheckKind::kRows), 0);
  }
  static Answer Right(const Tokens& prompt, uint32_t output = 8) {
    Duo alone(SmallModel(), {});
    return alone.Alone("b", prompt, output);
  }
  // B is asked, gets pages that A had, and its answer is that of a machine of its own.
  void ExpectUndisturbed(const Tokens& prompt) {
    Duo::Request& b = duo_.Ask("b", prompt);
    duo_.Finish(b);
    EXPECT_TRUE(b.status.ok()) << b.status;
    EXPECT_EQ(b.answer, Right(prompt));
  }
  // Whether both workers have room, or what stands in the way of one of them; nothing stays reserved.
  static std::variant<engine::Engine::Started, kv::MustWait, kv::Rejected> Probe(Duo& duo, const std::string& domain,
                                                                                 const Tokens& prompt) {
    std::variant<engine::Engine::Started, kv::MustWait, kv::Rejected> last;
    for (engine::Engine* engine : {&duo.prefill(), &duo.decode()}) {
      last = engine->Start({.domain_key = kv::DomainKey({}, domain), .domain = domain, .tokens = prompt, .max_output = 4});
      if (const auto* started = std::get_if<engine::Engine::Started>(&last)) {
        engine->Release(started->sequence);
        engine->Reclaim();
      } else {
        return last;
      }
    }
    return last;
  }
  void Turns(int count) {
    for (int i = 0; i < count; ++i) duo_.Turn();
  }
  uint64_t FreeOfDecode() {
    duo_.decode().Reclaim();
    return duo_.decode_pool().counts().free();
  }

  Duo duo_;
  const Tokens a_ = Prompt(50, kPrompt), b_ = Prompt(60, kPrompt);
};

// A1: over the prefill pool, under the decode pool.
TEST_F(Cases, A1_ARejectedPromptOwnsNothingAnywhereAndTheNextRequestIsUndisturbed) {
  Duo duo(SmallModel(), {.prefill_context = 96, .decode_context = 256});
  const Tokens next = Prompt(61, 60);
  Duo::Request& refused = duo.Ask("a", a_);
  EXPECT_TRUE(refused.done);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status)) << refused.status;
  EXPECT_EQ(refused.decode, nullptr) << "no stream was opened";
  EXPECT_EQ(duo.prefill_pool().counts().reserved_total + duo.decode_pool().counts().reserved_total, 0);
  EXPECT_EQ(duo.Alone("b", next), Right(next));
}

// L1, L3: an abort while pages are filled from the prefill worker, the transfer paused at every stage.
TEST_F(Cases, L1_L3_AnAbortWhileReadsAreOutNeverLetsBytesLandInAnothersPages) {
  for (size_t landed = 0; landed < kPages; ++landed) {
    Duo::Request& a = duo_.Ask("a", a_);
    a.hold_landings = true;
    Turns(10);
    ASSERT_EQ(a.reads.size(), kPages);
    duo_.PerformReads(a, landed);
    duo_.Cancel(a);
    const uint64_t free_before = FreeOfDecode();
    duo_.Wait(milliseconds(5000));  // seconds pass, and free nothing
    EXPECT_EQ(FreeOfDecode(), free_before) << "a timeout is no evidence that a read has ended";
    EXPECT_LT(free_before, duo_.decode_pool().total_pages());
    ExpectUndisturbed(b_);
    Duo::Request& beside = duo_.Ask("b", b_, 16);
    Turns(8);
    duo_.PerformReads(a, a.reads.size());  // now they land, while others run
    duo_.Finish(beside);
    EXPECT_EQ(beside.answer, Right(b_, 16)) << landed;
    EXPECT_TRUE(duo_.AllFree()) << landed;
  }
}

// L2: a late message of an earlier attempt of the same request.
TEST_F(Cases, L2_ALateMessageOfAnEarlierAttemptIsCountedAndNothingElse) {
  Duo::Request& a = duo_.Ask("a", a_);
  a.hold_messages = true;
  Turns(10);
  const auto late = std::exchange(a.messages, {});
  ASSERT_FALSE(late.empty());
  duo_.BreakStream(a, absl::UnavailableError("the connection broke"));
  Duo::Request& other = duo_.Ask("b", b_);
  other.hold_messages = true;
  Turns(10);
  duo_.AskAgain(a);
  for (const Duo::Request::Message& message : late) duo_.Deliver(a, message);
  EXPECT_EQ(duo_.stale_messages(), late.size());
  EXPECT_TRUE(a.reads.empty()) << "nothing is read for it";
  a.hold_messages = false;
  duo_.Finish(a);
  EXPECT_EQ(a.answer, Right(a_));
  other.hold_messages = false;
  duo_.Finish(other);
  EXPECT_EQ(other.answer, Right(b_));
}

// L4: pages that a sequence gave back while a step could still write into them.
TEST_F(Cases, L4_PagesOfASequenceThatEndsComeBackOnlyWhenItsStepHasPassed) {
  const kv::Pool& pool = duo_.decode_pool();
  Duo::Request& a = duo_.Ask("a", a_, 3);
  while (a.answer.size() < 2) duo_.Turn();
  const auto pages = duo_.decode().TenuresOf(*a.sequence);
  std::vector<engine::Event> events;
  duo_.decode().Step(events);  // its last token
  for (const auto& [page, generation] : pages) {
    EXPECT_EQ(pool.StateOf(page), kv::PageState::kRetired);
    EXPECT_EQ(pool.GenerationOf(page), generation) << "the tenure is named until it is over";
  }
  duo_.decode().Reclaim();
  for (const auto& [page, generation] : pages) EXPECT_EQ(pool.StateOf(page), kv::PageState::kFree);
  ExpectUndisturbed(b_);
}

// L5: an announcement that names another prompt's pages.
TEST_F(Cases, L5_AnotherPromptsPagesAreNeverReadAndTheRequestSaysSo) {
  Duo::Request& a = duo_.Ask("a", a_);
  a.hold_messages = true;
  Duo::Request& b = duo_.Ask("b", b_);
  b.hold_messages = true;
  Turns(20);
  Duo::Request::Message stale = a.messages.front();
  stale.attempt = b.attempt;
  duo_.Deliver(b, stale);
  EXPECT_TRUE(b.done && absl::IsDataLoss(b.status)) << b.status;
  EXPECT_TRUE(b.reads.empty() && b.answer.empty());
  a.hold_messages = false;
  duo_.Finish(a);
  EXPECT_EQ(a.answer, Right(a_));
  EXPECT_TRUE(duo_.AllFree());
}

// L6: the source lets go before decode reads.
TEST_F(Cases, L6_AReadThatComesAfterThePinFailsItsSealAndIsAnsweredByANewAttempt) {
  Duo::Request& a = duo_.Ask("a", a_);
  a.hold_reads = true;
  Turns(10);
  ASSERT_EQ(a.reads.size(), kPages);
  duo_.CloseStream(a);    // as a prefill worker does that was told to, or died and came back
  ExpectUndisturbed(b_);  // in the same pages of the source
  duo_.PerformReads(a, a.reads.size());
  EXPECT_TRUE(a.done && absl::IsDataLoss(a.status)) << a.status;
  EXPECT_GT(duo_.Failed(kv::CheckKind::kSeal), 0);
  a.hold_reads = false;
  duo_.AskAgain(a);
  duo_.Finish(a);
  EXPECT_EQ(a.answer, Right(a_));
}

// L6: and while the stream lives, the source keeps them, however long decode takes.
TEST_F(Cases, L6_WhileTheStreamLivesThePagesStay) {
  Duo::Request& a = duo_.Ask("a", a_);
  a.hold_reads = true;
  Turns(10);
  for (uint64_t seed = 70; seed < 74; ++seed) {
    const Tokens prompt = Prompt(seed, 90);
    EXPECT_EQ(duo_.Alone("b", prompt), Right(prompt));
  }
  a.hold_reads = false;
  duo_.Finish(a);
  EXPECT_EQ(a.answer, Right(a_));
}

// L7: a quick end and a timeout, in either order, free once. (A second release ends the process: PoolDeathTest.I2_*.)
TEST_F(Cases, L7_ACancelATimeoutAndTheEndOfTheStreamReleaseOnce) {
  for (int order = 0; order < 6; ++order) {
    Duo::Request& a = duo_.Ask("a", a_);
    a.hold_landings = true;
    Turns(6);
    for (int i = 0; i < 3; ++i) {
      switch ((order + i * (order < 3 ? 1 : 2)) % 3) {
        case 0:
          duo_.Cancel(a);
          break;
        case 1:
          duo_.Wait(milliseconds(400));
          break;
        default:
          duo_.BreakStream(a, absl::UnavailableError("gone"));
      }
    }
    duo_.PerformReads(a, a.reads.size());
    EXPECT_TRUE(duo_.AllFree()) << order;
    EXPECT_EQ(duo_.decode_pool().counts().reserved_total, duo_.decode_pool().counts().retired_total) << order;
  }
}

// L8: pages that a peer still reads, in a pool that others need.
TEST_F(Cases, L8_PinnedPagesAreNotGivenToOthersHoweverFullThePoolIs) {
  Duo duo(SmallModel(), {.pages = 10, .prefill_chunk_tokens = 16});
  Duo::Request& a = duo.Ask("a", a_, 4);
  a.hold_reads = true;
  for (int i = 0; i < 10; ++i) duo.Turn();
  ASSERT_EQ(duo.prefill_pool().counts().free(), 10 - kPages);
  const auto refused = duo.prefill().Start({.domain_key = {}, .tokens = b_});
  EXPECT_TRUE(std::holds_alternative<kv::MustWait>(refused)) << "it waits; nothing is taken for it";
  a.hold_reads = false;
  duo.Finish(a);
  EXPECT_EQ(a.answer, Right(a_, 4));
}

// L8, with a cache: what a reader still waits for is not what makes room.
TEST_F(Cases, L8_PagesThatWereAnnouncedAreNotEvictedAndOthersAre) {
  Duo duo(SmallModel(), {.pages = 16, .prefill_chunk_tokens = 16, .prefix_cache = true});
  EXPECT_EQ(duo.Alone("b", b_, 4), Right(b_, 4));
  Duo::Request& a = duo.Ask("a", a_, 4);
  a.hold_reads = true;
  for (int i = 0; i < 12; ++i) duo.Turn();
  const auto pinned = duo.prefill().TenuresOf(*a.contractor);
  // The rest is too small for this one: pages of b go, those of a stay, and it waits.
  const engine::SequenceSpec large{.domain_key = {}, .domain = "c", .tokens = Prompt(70, 200)};
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(std::holds_alternative<kv::MustWait>(duo.prefill().Start(large)));
    duo.Turn();
  }
  EXPECT_GT(duo.prefill().cache().counters().evicted_pages, 0);
  for (const auto& [page, generation] : pinned) EXPECT_EQ(duo.prefill_pool().GenerationOf(page), generation);
  a.hold_reads = false;
  duo.Finish(a);
  EXPECT_EQ(a.answer, Right(a_, 4));
}

// L9: a pool full of cancelled requests, and no work that would reclaim.
TEST_F(Cases, L9_PagesOfCancelledRequestsComeBackWithoutAnyWork) {
  Duo duo(SmallModel(), {.pages = 16, .prefill_chunk_tokens = 16});
  Duo::Request& first = duo.Ask("a", a_);
  Duo::Request& second = duo.Ask("b", b_);
  for (Duo::Request* request : {&first, &second}) request->hold_messages = true;
  EXPECT_LT(duo.decode_pool().counts().free(), kPages);
  for (Duo::Request* request : {&first, &second}) duo.Cancel(*request);
  EXPECT_FALSE(duo.decode().HasWork());
  EXPECT_TRUE(duo.AllFree());
}

// H1: many requests at once, each with its own first token.
TEST_F(Cases, H1_UnderLoadEveryFirstTokenIsItsOwn) {
  std::vector<Tokens> prompts;
  std::vector<Duo::Request*> requests;
  for (uint64_t i = 0; i < 8; ++i) {
    prompts.push_back(Prompt(100 + i, 40 + 5 * i));
    requests.push_back(&duo_.Ask("t" + std::to_string(i % 3), prompts.back(), 1));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    duo_.Finish(*requests[i]);
    EXPECT_EQ(requests[i]->answer, Right(prompts[i], 1)) << i;
  }
}

// H2: a part of the transfer fails, the rest succeeds.
TEST_F(Cases, H2_NoLaterSuccessOverwritesTheFailureOfOnePage) {
  for (size_t failing = 0; failing < kPages; ++failing) {
    Duo::Request& a = duo_.Ask("a", a_);
    a.hold_landings = true;
    Turns(10);
    ASSERT_EQ(a.reads.size(), kPages);
    duo_.PerformReads(a, failing);
    duo_.FailRead(a);
    duo_.PerformReads(a, a.reads.size());
    Turns(5);
    EXPECT_TRUE(a.done && absl::IsUnavailable(a.status)) << failing << ": " << a.status;
    EXPECT_TRUE(a.answer.empty());
    EXPECT_TRUE(duo_.AllFree());
  }
}

// H3: an abort between the last chunk and the completion.
TEST_F(Cases, H3_AnAbortBeforeTheLastPageLandsIsKept) {
  Duo::Request& a = duo_.Ask("a", a_);
  a.hold_landings = true;
  Turns(10);
  duo_.PerformReads(a, kPages - 1);
  duo_.Cancel(a);
  duo_.PerformReads(a, 1);
  Turns(5);
  EXPECT_TRUE(absl::IsCancelled(a.status)) << a.status;
  EXPECT_TRUE(a.answer.empty()) << "no token after an abort";
  EXPECT_TRUE(duo_.AllFree());
}

// H4: an abort at every turn of a prefill, also of the one that ends it.
TEST_F(Cases, H4_AnAbortAtAnyTurnIsSafe) {
  for (int turns = 0; turns < 12; ++turns) {
    Duo::Request& a = duo_.Ask("a", a_, 3);
    Turns(turns);
    if (a.done) break;
    duo_.Cancel(a);
    Turns(1);
    EXPECT_TRUE(duo_.AllFree()) << turns;
  }
  ExpectUndisturbed(b_);
}

// H5: through the handoff or computed by decode itself.
TEST_F(Cases, H5_TheHandoffChangesNoBit) {
  for (const size_t length : {2, 16, 17, 33, 100}) {
    const Tokens prompt = Prompt(length, length);
    Duo::Request& handed = duo_.Ask("a", prompt);
    duo_.Finish(handed);
    auto started = duo_.decode().Start(handed.spec);
    const SequenceId sequence = std::get<engine::Engine::Started>(started).sequence;
    duo_.decode().Run(sequence);
    Answer local;
    while (duo_.decode().HasWork()) {
      std::vector<engine::Event> events;
      duo_.decode().Step(events);
      for (const engine::Event& event : events) {
        if (const auto* token = std::get_if<engine::TokenEvent>(&event))
          local.push_back({token->token, std::bit_cast<uint32_t>(token->logprob)});
      }
    }
    EXPECT_EQ(handed.answer, local) << length;
  }
}

// H7: one side goes; the other lets go within the limit.
TEST_F(Cases, H7_ASilentPrefillWorkerIsLetGoWithinTheLimit) {
  Duo::Request& a = duo_.Ask("a", a_);
  a.hold_messages = true;
  duo_.Turn();
  duo_.Wait(milliseconds(320));
  EXPECT_TRUE(a.done && absl::IsUnavailable(a.status)) << a.status;
  EXPECT_TRUE(duo_.AllFree());
}

// S1: what another tenant has asked costs as much as what nobody has, and steps are what time is made of here.
TEST_F(Cases, S1_AnotherTenantsPrefixSavesNothing) {
  Duo duo(SmallModel(), {.pages = 64, .prefill_chunk_tokens = 16, .prefix_cache = true});
  const auto rows = [&](const std::string& domain, const std::string& salt) {
    const uint64_t before = duo.prefill().counters().rows + duo.decode().counters().rows;
    Duo::Request& request = duo.Ask(domain, a_, 4, salt);
    duo.Finish(request);
    EXPECT_EQ(request.answer, Right(a_, 4));
    return duo.prefill().counters().rows + duo.decode().counters().rows - before;
  };
  const uint64_t first = rows("a", "");
  EXPECT_EQ(rows("b", ""), first);
  EXPECT_EQ(rows("a", "salt"), first);
  EXPECT_LT(rows("a", ""), first / 4);
}

// S2: parts of a key that run into each other. (There are no adapters yet: domain and salt are the parts that a client chooses.)
TEST_F(Cases, S2_PartsOfAKeyDoNotRunIntoEachOther) {
  Duo duo(SmallModel(), {.pages = 64, .prefill_chunk_tokens = 16, .prefix_cache = true});
  const std::pair<const char*, const char*> parts[] = {{"ab", "c"}, {"a", "bc"}, {"abc", ""}, {"", "abc"}};
  for (const auto& [domain, salt] : parts) {
    Duo::Request& request = duo.Ask(domain, a_, 2, salt);
    EXPECT_EQ(request.cached_pages, 0) << domain << "+" << salt;
    EXPECT_EQ(duo.prefill().CachedPages(*request.contractor), 0) << domain << "+" << salt;
    duo.Finish(request);
  }
}

// S4: the tree holds pages only once they are sealed, and they are its own: an abort takes nothing from it and leaves nothing in
// it.
TEST_F(Cases, S4_AbortedAfterAnyChunkAPrefixIsAnsweredCleanlyAgain) {
  for (int chunks = 1; chunks <= 8; ++chunks) {
    Duo duo(SmallModel(), {.pages = 24, .prefill_chunk_tokens = 24, .prefix_cache = true});
    Duo::Request& aborted = duo.Ask("a", a_);
    for (int i = 0; i < chunks; ++i) duo.Turn();
    if (!aborted.done) duo.Cancel(aborted);
    EXPECT_TRUE(duo.AllFree()) << chunks;
    duo.prefill().cache().CheckConsistency();
    duo.decode().cache().CheckConsistency();
    EXPECT_EQ(duo.Alone("b", b_), Right(b_)) << chunks;  // takes what was free
    Duo::Request& again = duo.Ask("a", a_);
    EXPECT_LE(again.cached_pages, kPages - 1);
    duo.Finish(again);
    EXPECT_EQ(again.answer, Right(a_)) << chunks;
    EXPECT_TRUE(duo.AllFree()) << chunks;
    EXPECT_EQ(duo.Failed(kv::CheckKind::kTags) + duo.Failed(kv::CheckKind::kSeal) + duo.Failed(kv::CheckKind::kContent), 0);
  }
}

// What a prefill worker's cache holds wrong must not fail one request after the other.
TEST_F(Cases, ABadPageInPrefillsCacheIsComputedAgain) {
  Duo duo(SmallModel(), {.pages = 64, .prefill_chunk_tokens = 32, .prefix_cache = true});
  Duo::Request& first = duo.Ask("a", a_);
  first.hold_messages = true;
  for (int i = 0; i < 12; ++i) duo.Turn();
  const PageId page = duo.prefill().TenuresOf(*first.contractor)[3].first;
  first.hold_messages = false;
  duo.Finish(first);
  duo.decode().DropOrigin(1);  // now only prefill has them
  duo.prefill_pool().Payload(page)[5] ^= std::byte{1};
  Duo::Request& again = duo.Ask("a", a_);
  EXPECT_EQ(again.cached_pages, 0);
  EXPECT_EQ(duo.prefill().CachedPages(*again.contractor), 3);
  duo.Finish(again);
  EXPECT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(again.answer, Right(a_));
  EXPECT_EQ(duo.Failed(kv::CheckKind::kScrub), 1);
}

// S5: whatever ends it, a sequence's pages, also the one that was partly filled, go back once.
TEST_F(Cases, S5_APartlyFilledPageIsReleasedOnceWhereverItsSequenceEnds) {
  for (size_t tokens = 0; tokens < 6; ++tokens) {
    Duo::Request& a = duo_.Ask("a", a_, 6);
    for (int i = 0; i < 60 && a.answer.size() < tokens && !a.done; ++i) duo_.Turn();
    if (!a.done) duo_.Cancel(a);
    EXPECT_TRUE(duo_.AllFree()) << tokens;
    EXPECT_EQ(duo_.decode_pool().counts().reserved_total, duo_.decode_pool().counts().retired_total);
  }
}

// S6: P, another prompt, P again.
TEST_F(Cases, S6_AnotherConversationInBetweenChangesNothing) {
  const Answer before = duo_.Alone("a", a_);
  EXPECT_NE(duo_.Alone("b", b_), before);
  EXPECT_EQ(duo_.Alone("a", a_), before);
}

// S6, with a cache that is too small for both.
TEST_F(Cases, S6_WhateverTheCacheStillHoldsAConversationGetsItsOwnAnswers) {
  Duo duo(SmallModel(), {.pages = 20, .prefill_chunk_tokens = 32, .prefix_cache = true});
  uint64_t found = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    Tokens prompt = i % 3 == 0 ? a_ : Prompt(60 + i % 5, kPrompt);
    prompt.resize(20 + (i * 37) % 80);
    const std::string domain = i % 2 == 0 ? "a" : "b";
    // What is in the way goes first.
    while (std::holds_alternative<kv::MustWait>(Probe(duo, domain, prompt))) duo.Turn();
    Duo::Request& request = duo.Ask(domain, prompt, 4);
    found += request.cached_pages;
    duo.Finish(request);
    EXPECT_EQ(request.answer, Right(prompt, 4)) << i;
  }
  EXPECT_GT(found, 10);
  EXPECT_GT(duo.decode().cache().counters().evicted_pages, 10);
}

// B1: up to the last token of the context, beside a neighbour.
TEST_F(Cases, B1_AtTheEndOfTheContextNothingIsWrittenIntoTheNeighbour) {
  Duo::Request& neighbour = duo_.Ask("b", b_, 40);
  Duo::Request& full = duo_.Ask("a", Prompt(80, 256 - 24), 24);
  duo_.Finish(full);
  duo_.Finish(neighbour);
  EXPECT_TRUE(full.status.ok()) << full.status;
  EXPECT_EQ(full.answer.size(), 24);
  EXPECT_EQ(full.answer, Right(Prompt(80, 256 - 24), 24));
  EXPECT_EQ(neighbour.answer, Right(b_, 40));
  EXPECT_TRUE(absl::IsInvalidArgument(duo_.Ask("a", Prompt(80, 256 - 24), 25).status)) << "one token more is refused";
}

}  // namespace
}  // namespace cofferdam::incidents
