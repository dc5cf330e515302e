// Each historic bug, switched on, with the layers that stand against it: every one of them alone must catch it, and without all of
// them it must do harm (else nothing was shown). Prints a line of the table for each: `scripts/incidents` collects them.
//
// Harm is a wrong answer with status OK, bit for bit; and a leak is an answer that changes with what another tenant's prompt holds.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/faults.h"
#include "incidents/duo.h"
#include "small_model.h"

namespace cofferdam::incidents {
namespace {

using engine::VerifyReads;
using oracle::Prompt;
using oracle::SmallModel;

struct Layer {
  std::string name;
  std::vector<Fault> off;  // what takes it away
  bool full = false;       // or: it is --verify-reads=full
  bool scrub = false;      // or: it is the scrubber
  bool partly = false;     // it limits the harm: see the case
};

// What came of the victim's request.
struct Outcome {
  absl::Status status;
  Answer answer;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};
// Asks for the victim's answer while somebody else's prompt, a function of `seed`, goes through the same pages.
using Scenario = std::function<Outcome(Duo&, uint64_t seed)>;

struct Case {
  std::string name;
  std::vector<Fault> bug;
  std::vector<Layer> layers;
  Scenario scenario;
  bool must_leak = true;  // without any layer
  std::vector<Fault> always{};
  uint64_t prefill_context = 256;
  size_t at_least = 2;  // independent layers
};

Tokens VictimsPrompt() { return Prompt(1, 100); }
Tokens OthersPrompt(uint64_t seed) { return Prompt(1000 + seed, 90); }

Outcome OutcomeOf(const Duo::Request& request) { return {.status = request.status, .answer = request.answer}; }

class Peel : public testing::Test {
 protected:
  void TearDown() override { Set({}); }

  static void Set(const std::vector<Fault>& faults) {
    for (size_t i = 0; i < kFaultNames.size(); ++i) SetFault(static_cast<Fault>(i), false);
    for (const Fault fault : faults) SetFault(fault, true);
  }

  struct Verdict {
    bool wrong = false, leaked = false;
    std::string how;
  };
  // With the case's bug, and of its layers only `layer` (-1: none of them; -2: all).
  static Verdict Run(const Case& c, int layer) {
    std::vector<Fault> faults = c.bug;
    faults.insert(faults.end(), c.always.begin(), c.always.end());
    DuoOptions options{.prefill_context = c.prefill_context, .decode_context = 256, .prefill_chunk_tokens = 16};
    bool scrub = false;
    for (int i = 0; i < static_cast<int>(c.layers.size()); ++i) {
      const Layer& l = c.layers[static_cast<size_t>(i)];
      if (i == layer || layer == -2) {
        if (l.full) options.verify = {.mode = VerifyReads::Mode::kFull};
        scrub = scrub || l.scrub;
      } else {
        faults.insert(faults.end(), l.off.begin(), l.off.end());
      }
    }
    Outcome outcomes[2];
    std::vector<std::string> failed;
    for (uint64_t seed : {0, 1}) {
      Set(faults);
      Duo duo(SmallModel(), options);
      if (scrub) duo.ScrubEveryTurn();
      outcomes[seed] = c.scenario(duo, seed);
      failed.clear();
      for (const kv::CheckKind kind : kv::kAllCheckKinds) {
        if (duo.Failed(kind) > 0) failed.emplace_back(kv::ToString(kind));
      }
    }
    Set({});
    Duo undisturbed(SmallModel(), {});
    static const Answer right = undisturbed.Alone("victim", VictimsPrompt());
    Verdict verdict;
    verdict.leaked = outcomes[0].answer != outcomes[1].answer;
    for (const Outcome& outcome : outcomes) verdict.wrong = verdict.wrong || (outcome.status.ok() && outcome.answer != right);
    verdict.how = !outcomes[0].status.ok() ? std::string(outcomes[0].status.message())
                  : verdict.wrong          ? "wrong answer"
                                           : "right answer";
    if (!failed.empty()) absl::StrAppend(&verdict.how, " [", absl::StrJoin(failed, ", "), "]");
    return verdict;
  }

  static void Check(const Case& c) {
    const Verdict none = Run(c, -1);
    EXPECT_TRUE(none.wrong) << c.name << ": without any layer it must do harm, and it says: " << none.how;
    EXPECT_TRUE(none.leaked || !c.must_leak) << c.name << ": without any layer another's data must show";
    const Verdict all = Run(c, -2);
    EXPECT_FALSE(all.wrong || all.leaked) << c.name << " with every layer: " << all.how;
    size_t against = 0;
    for (size_t i = 0; i < c.layers.size(); ++i) {
      const Layer& layer = c.layers[i];
      const Verdict verdict = Run(c, static_cast<int>(i));
      EXPECT_FALSE(verdict.leaked && !layer.scrub) << c.name << ", " << layer.name << ": " << verdict.how;
      if (!layer.partly) {
        EXPECT_FALSE(verdict.wrong) << c.name << ", " << layer.name << ": " << verdict.how;
        ++against;
      }
      std::printf("LAYER|%s|%s|%s\n", c.name.c_str(), layer.name.c_str(), verdict.how.c_str());
    }
    EXPECT_GE(against, c.at_least) << c.name << ": too few independent layers";
    std::printf("LAYER|%s|(none of them)|%s%s\n", c.name.c_str(), none.how.c_str(), none.leaked ? ", another's data shows" : "");
  }

  static inline const Layer kFull{.name = "--verify-reads=full", .off = {}, .full = true};
  static inline const Layer kScrubber{.name = "scrubber, every turn", .off = {}, .scrub = true, .partly = true};  // after a step
  static inline const Layer kStates{.name = "page was ever filled", .off = {Fault::kStatesNotCompared}};
  static inline const Layer kAdopted{.name = "engine compares identities", .off = {Fault::kAdoptedNotCompared}};
  static inline const Layer kContent{.name = "content of layer 0", .off = {Fault::kContentNotChecked}};
  static inline const Layer kChecksum{.name = "checksum on arrival", .off = {Fault::kChecksumNotChecked}};
  static inline const Layer kRest{.name = "zero behind the last token", .off = {Fault::kRestNotChecked}};
  static inline const Layer kEngineCounts{.name = "engine counts coverage", .off = {Fault::kCoverageNotCounted}};
  static inline const Layer kHandoffCounts{.name = "handoff counts coverage", .off = {Fault::kCoverageByPeer}};
};

// The other's prompt goes through first; the victim then gets the same pages.
Outcome AfterAnother(Duo& duo, uint64_t seed) {
  duo.Finish(duo.Ask("other", OthersPrompt(seed), 4));
  duo.Turn();
  Duo::Request& victim = duo.Ask("victim", VictimsPrompt());
  duo.Finish(victim);
  return OutcomeOf(victim);
}

TEST_F(Peel, A1_RejectTreatedAsLive) {
  Check({.name = "reject treated as live",
         .bug = {Fault::kRejectGoesOn},
         .layers = {{.name = "decode judges what the peer holds", .off = {Fault::kPeerNotJudged}},
                    {.name = "identity in the seal", .off = {Fault::kIdentityNotChecked}},
                    kHandoffCounts,
                    kAdopted,
                    kStates,
                    kContent,
                    {.name = "zeroing", .off = {Fault::kNoZeroing}, .partly = true}},
         .scenario = AfterAnother,
         .always = {Fault::kCoverageNotCounted},
         .prefill_context = 96});  // the other's prompt fits, the victim's does not
}

TEST_F(Peel, IdentityFromTheRequest) {
  Check({.name = "identity copied from the request",
         .bug = {Fault::kPlaceholderPrompt, Fault::kIdentityFromRequest},
         .layers = {{.name = "rows compared with the request", .off = {Fault::kRowsNotCompared}}, kContent},
         .scenario = AfterAnother,
         .must_leak = false});
}

// The peer announces pages of another prompt in the place of the victim's.
TEST_F(Peel, L5_IdentityNotChecked) {
  const auto scenario = [](Duo& duo, uint64_t seed) {
    Duo::Request& other = duo.Ask("other", Prompt(1000 + seed, 100), 4);
    other.hold_messages = true;
    Duo::Request& victim = duo.Ask("victim", VictimsPrompt());
    victim.hold_messages = true;
    for (int i = 0; i < 20; ++i) duo.Turn();
    std::vector<handoff::AnnouncedPage> theirs;
    for (const Duo::Request::Message& message : other.messages)
      theirs.insert(theirs.end(), message.pages.begin(), message.pages.end());
    for (Duo::Request::Message& message : victim.messages) {
      for (handoff::AnnouncedPage& page : message.pages) page = theirs.at(page.ordinal);
    }
    victim.hold_messages = false;
    duo.Finish(victim);
    const Outcome outcome = OutcomeOf(victim);
    duo.Cancel(other);
    return outcome;
  };
  Check(
      {.name = "identity not checked", .bug = {Fault::kIdentityNotChecked}, .layers = {kAdopted, kContent}, .scenario = scenario});
}

TEST_F(Peel, CoverageByThePeersLength) {
  Check({.name = "coverage by the peer's length",
         .bug = {Fault::kCoverageByPeer},
         .layers = {kEngineCounts, kStates, {.name = "zeroing", .off = {Fault::kNoZeroing}, .partly = true}},
         .scenario = AfterAnother});
}

TEST_F(Peel, NoZeroing) {
  Check({.name = "no zeroing",
         .bug = {Fault::kNoZeroing},
         .layers = {kHandoffCounts, kEngineCounts, kStates},
         .scenario = AfterAnother});
}

// The other is given up while its reads are out; they land when its pages are the victim's.
TEST_F(Peel, L1_L3_FreeAtATimeout) {
  const auto scenario = [](Duo& duo, uint64_t seed) {
    Duo::Request& other = duo.Ask("other", OthersPrompt(seed), 4);
    other.hold_landings = true;
    for (int i = 0; i < 12; ++i) duo.Turn();
    duo.Wait(std::chrono::milliseconds(400));
    EXPECT_TRUE(other.done && absl::IsUnavailable(other.status)) << other.status;
    Duo::Request& victim = duo.Ask("victim", VictimsPrompt());
    for (int i = 0; i < 200 && victim.answer.empty() && !victim.done; ++i) duo.Turn();
    duo.PerformReads(other, other.reads.size());
    duo.Finish(victim);
    return OutcomeOf(victim);
  };
  Check({.name = "free at timeout",
         .bug = {Fault::kFreeAtTimeout},
         .layers = {{.name = "transfers held in the pool", .off = {Fault::kTransfersNotCounted}}, kFull, kScrubber},
         .scenario = scenario});
}

// A row of the other's is still under way when its pages have become the victim's.
Outcome BesideALateRow(Duo& duo, uint64_t seed) {
  // Its last token's place is inside of what the victim's prompt fills.
  Duo::Request& other = duo.Ask("other", Prompt(1000 + seed, 41), 4);
  duo.Finish(other);
  // Between two steps of decode: everything of the victim's arrives at once.
  Duo::Request& victim = duo.Ask("victim", VictimsPrompt());
  for (int i = 0; i < 12; ++i) duo.PrefillTurn();
  duo.DeliverAll(victim);
  duo.Finish(victim);
  return OutcomeOf(victim);
}

TEST_F(Peel, L4_NoStepFence) {
  Check({.name = "no step fence",
         .bug = {Fault::kFinishedRowComputes, Fault::kNoStepFence},
         .layers = {{.name = "tags before the step", .off = {Fault::kTagsNotCompared}}, kFull, kScrubber},
         .scenario = BesideALateRow});
}

TEST_F(Peel, StaleGenerationAccepted) {
  Check({.name = "stale generation accepted",
         .bug = {Fault::kFinishedRowComputes, Fault::kStaleGeneration},
         .layers = {{.name = "step fence", .off = {Fault::kNoStepFence}}, kFull, kScrubber},
         .scenario = BesideALateRow});
}

// An announcement of the victim's first attempt comes in its second, when its page at the source has become the other's.
TEST_F(Peel, L2_StaleMessageAccepted) {
  const auto scenario = [](Duo& duo, uint64_t seed) {
    Duo::Request& victim = duo.Ask("victim", VictimsPrompt());
    victim.hold_messages = true;
    for (int i = 0; i < 12; ++i) duo.Turn();
    const std::deque<Duo::Request::Message> late = std::exchange(victim.messages, {});
    duo.BreakStream(victim, absl::UnavailableError("the connection broke"));
    duo.Turn();
    Duo::Request& other = duo.Ask("other", OthersPrompt(seed), 4);
    other.hold_messages = true;
    for (int i = 0; i < 12; ++i) duo.Turn();
    duo.AskAgain(victim);
    for (const Duo::Request::Message& message : late) duo.Deliver(victim, message);
    victim.hold_messages = false;
    duo.Finish(victim);
    const Outcome outcome = OutcomeOf(victim);
    duo.Cancel(other);
    return outcome;
  };
  Check({.name = "stale message accepted",
         .bug = {Fault::kStaleAttempt},
         .layers = {kChecksum, kRest, kContent},
         .scenario = scenario});
}

// Reads are slow, and the source's pages have become the other's before they are read.
TEST_F(Peel, L6_PinDroppedEarly) {
  const auto scenario = [](Duo& duo, uint64_t seed) {
    Duo::Request& victim = duo.Ask("victim", VictimsPrompt());
    victim.hold_reads = true;
    for (int i = 0; i < 12; ++i) duo.Turn();
    Duo::Request& other = duo.Ask("other", OthersPrompt(seed), 4);
    other.hold_messages = true;
    // Not to its end: then its own pages would be gone.
    for (int i = 0; i < 4; ++i) duo.Turn();
    victim.hold_reads = false;
    duo.Finish(victim);
    const Outcome outcome = OutcomeOf(victim);
    duo.Cancel(other);
    return outcome;
  };
  Check({.name = "pin dropped early",
         .bug = {Fault::kPinDroppedEarly},
         .layers = {kChecksum, kRest, kContent},
         .scenario = scenario});
}

// The second layer is the health, which says that the check does not run: see layers_test.cc. A page of the other's comes to lie
// where one of the victim's was, tags and all.
TEST_F(Peel, TagsNotCompared) {
  const auto scenario = [](Duo& duo, uint64_t seed) {
    Duo::Request& other = duo.Ask("other", OthersPrompt(seed), 12);
    Duo::Request& victim = duo.Ask("victim", VictimsPrompt());
    for (int i = 0; i < 200 && (victim.answer.empty() || other.answer.empty()); ++i) duo.Turn();
    const size_t page_bytes = duo.decode_pool().layout().page_bytes();
    const auto whole = [&](const Duo::Request& request) {
      const auto payload = duo.decode().PageAt(*request.sequence, 2).payload;
      return std::span(payload.data() - kv::kTagBytes, page_bytes);
    };
    if (victim.sequence.has_value() && other.sequence.has_value()) {
      std::ranges::copy(whole(other), whole(victim).begin());
    }
    duo.Finish(victim);
    return OutcomeOf(victim);
  };
  Check({.name = "tags not compared",
         .bug = {Fault::kTagsNotCompared},
         .layers = {kFull, kScrubber},
         .scenario = scenario,
         .at_least = 1});
}

// Two tenants with one prompt, one key and a prefix cache: what one computed is not found by the other.
TEST_F(Peel, I10_CrossDomainKey) {
  Set({Fault::kCrossDomainKey});
  Duo duo(SmallModel(), {.prefix_cache = true});
  const Answer first = duo.Alone("other", VictimsPrompt());
  Duo::Request& victim = duo.Ask("victim", VictimsPrompt());
  EXPECT_EQ(victim.cached_pages, 0);
  EXPECT_EQ(duo.prefill().CachedPages(*victim.contractor), 0);
  duo.Finish(victim);
  EXPECT_EQ(victim.answer, first);
  std::printf("LAYER|cross-domain key|a tree for each domain|each tenant's pages were computed for it\n");
}

}  // namespace
}  // namespace cofferdam::incidents
