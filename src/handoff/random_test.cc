// Both machines against each other under a random scheduler: tens of thousands of schedules, each from its own seed.
// COFFERDAM_HANDOFF_SEED=n runs that schedule alone, COFFERDAM_HANDOFF_SCHEDULES=n another number of them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "handoff/decode_handoff.h"
#include "handoff/prefill_handoff.h"
#include "handoff/testing.h"

namespace cofferdam::handoff {
namespace {

using kv::SealFault;
using testing::kAttempt;
using testing::kEarlier;
using testing::kPageBytes;
using testing::milliseconds;

// How often each rare branch was reached over the whole run; the test requires all of them.
using Marks = std::map<std::string, uint64_t>;

class World {
 public:
  World(uint64_t seed, Marks& marks) : random_(seed), marks_(marks) {
    tokens_ = 1 + Draw(uint64_t{8} * testing::kPageTokens);
    pages_ = static_cast<uint32_t>((tokens_ + testing::kPageTokens - 1) / testing::kPageTokens);
    first_page_ = static_cast<uint32_t>(Draw(pages_));
    cap_bytes_ = (1 + Draw(4)) * kPageBytes - Draw(2);  // also one byte less than a page
    window_bytes_ = (1 + Draw(4)) * kPageBytes;
    cap_ = std::make_unique<TransferWindow>(cap_bytes_);
    window_ = std::make_unique<TransferWindow>(window_bytes_, cap_.get());
    // A part of the schedules runs almost undisturbed, so that completion is reached late, too.
    faults_ = Chance(3) ? 0 : 1 + Draw(Chance(2) ? 30 : 250);
    decode_ = std::make_unique<DecodeHandoff>(DecodeHandoff::Options{.attempt = kAttempt,
                                                                     .layout_id = testing::LayoutId(),
                                                                     .identities = testing::Identities(pages_),
                                                                     .covered_tokens = tokens_,
                                                                     .first_page = first_page_,
                                                                     .page_tokens = testing::kPageTokens,
                                                                     .page_bytes = kPageBytes,
                                                                     .silence_limit = milliseconds(300),
                                                                     .stall_limit = milliseconds(1000)},
                                              *window_, now_);
    prefill_ = std::make_unique<PrefillHandoff>(
        PrefillHandoff::Options{
            .pages = pages_, .first_page = first_page_, .silence_limit = milliseconds(300), .progress_limit = milliseconds(1000)},
        now_);
    const bool crowded = Chance(4);  // another handoff holds the window
    while (crowded && window_->TryTake(other_, kPageBytes)) {
    }
    window_->StopWaiting(other_);
  }

  void Run() {
    for (int step = 0; step < 400 && !Over() && !Failed(); ++step) RandomEvent();
    if (!Failed()) Drain();
  }

 private:
  static bool Failed() { return ::testing::Test::HasFailure(); }
  uint64_t Draw(uint64_t below) { return random_() % below; }
  bool Chance(uint64_t one_in) { return Draw(one_in) == 0; }
  // In thousandths, at a rate that differs between schedules.
  bool Fault() { return Draw(1000) < faults_; }
  bool Over() const { return (decode_->complete() || decode_->released()) && prefill_->closed() && reads_.empty(); }

  void RandomEvent() {
    switch (Draw(12)) {
      case 0:
      case 1:
        return StepPrefill();
      case 2:
      case 3:
        return DeliverToDecode();
      case 4:
        return DeliverToPrefill();
      case 5:
      case 6:
        return EndRead(std::nullopt);
      case 7:
        return Heartbeats();
      case 8:
        return Tick();
      case 9:
        return GiveOther();
      default:
        return DisturbSomething();
    }
  }

  // ---- the prefill worker
  void StepPrefill() {
    PrefillActions actions;
    if (!answered_) {
      answered_ = true;
      if (Fault()) {
        Mark("refused");
        if (prefill_->closed()) return;
        prefill_->OnRefused(absl::ResourceExhaustedError("full"), actions);
      } else {
        if (prefill_->closed()) Mark("reserved after the stream was closed");
        prefill_->OnReserved(actions);
      }
      return Perform(actions);
    }
    // A step that was running when the stream was closed still ends.
    if (computed_ == pages_ || (!prefill_->pinned() && !Chance(4))) return;
    ++steps_;
    if (Fault()) {
      Mark("computation failed");
      if (prefill_->pinned()) ++unpinned_;
      prefill_->OnComputeFailed(absl::DataLossError("tag"), actions);
      computed_ = pages_;
      return Perform(actions);
    }
    std::vector<AnnouncedPage> sealed;
    for (uint64_t n = 1 + Draw(3); n > 0 && computed_ < pages_; --n) sealed.push_back(testing::Page(computed_++, tokens_));
    if (prefill_->closed()) Mark("a step ended after the stream was closed");
    prefill_->OnSealed(std::move(sealed), actions);
    Perform(actions);
  }
  void Perform(const PrefillActions& actions) {
    for (const PrefillAction& action : actions) {
      if (std::holds_alternative<SendAdmitted>(action)) ++admitted_sent_;
      if (const auto* sealed = std::get_if<SendSealed>(&action)) {
        EXPECT_FALSE(prefill_->closed()) << "nothing is announced on a closed stream";
        for (const AnnouncedPage& page : sealed->pages) {
          EXPECT_EQ(page.ordinal, std::max(first_page_, announced_)) << "each page once, in order";
          announced_ = page.ordinal + 1;
        }
        if (stream_open_) to_decode_.push_back(sealed->pages);
      }
      if (const auto* end = std::get_if<EndStream>(&action)) {
        EXPECT_FALSE(end->status.ok()) << "prefill never ends a stream well";
        EXPECT_EQ(++prefill_ends_, 1);
        if (stream_open_) stream_end_ = end->status;
        stream_open_ = false;
      }
      if (std::holds_alternative<Unpin>(action)) {
        EXPECT_TRUE(prefill_->closed()) << "L6: the pin lives as long as the stream";
        EXPECT_EQ(++unpinned_, 1) << "L7";
        if (!reads_.empty()) Mark("unpinned under a reader");
        source_reused_ = true;
      }
    }
    EXPECT_LE(unpinned_, 1) << "L7";
  }

  // ---- the network
  void DeliverToDecode() {
    DecodeActions actions;
    if (!to_decode_.empty()) {
      std::vector<AnnouncedPage> pages = to_decode_.front();
      if (Fault()) {
        Mark("announced twice");
      } else {
        to_decode_.pop_front();
      }
      if (Fault()) Corrupt(pages.at(Draw(pages.size())));
      decode_->OnAnnounced(kAttempt, pages, now_, actions);
    } else if (stream_end_.has_value() && !decode_told_) {
      decode_told_ = true;
      if (decode_->running()) Mark("decode learnt of the stream's end before coverage");
      decode_->OnStreamEnded(*stream_end_, actions);
    }
    Perform(actions);
  }
  void Corrupt(AnnouncedPage& page) {
    Mark("wrong announcement");
    switch (Draw(4)) {
      case 0:
        page.ordinal = pages_ + static_cast<uint32_t>(Draw(3));
        break;
      case 1:
        page.seal.identity[2] ^= 1;
        break;
      case 2:
        page.seal.tokens ^= 1;
        break;
      default:
        page.seal.layout_id[0] ^= 1;
    }
  }
  void DeliverToPrefill() {
    if (stream_open_ || prefill_->closed()) return;
    PrefillActions actions;
    prefill_->OnStreamClosed(actions);
    Perform(actions);
  }
  void BreakStream() {
    if (!stream_open_) return;
    stream_open_ = false;
    stream_end_ = Chance(3) ? absl::OkStatus() : absl::UnavailableError("broken");
    while (!to_decode_.empty() && Chance(2)) to_decode_.pop_back();  // what was on its way is lost
  }
  void Heartbeats() {
    DecodeActions actions;
    if (stream_open_) {
      prefill_->OnPeerHeartbeat(Fault() ? ~0u : decode_->covered_pages(), now_);
      decode_->OnHeartbeat(Fault() ? kEarlier : kAttempt, steps_, now_, actions);
    }
    Perform(actions);
  }

  // ---- the fabric: reads end in any order
  void EndRead(const std::optional<absl::Status>& forced) {
    if (reads_.empty()) return;
    const auto read = std::next(reads_.begin(), static_cast<std::ptrdiff_t>(Draw(reads_.size())));
    const uint32_t ordinal = *read;
    reads_.erase(read);
    DecodeActions actions;
    if (!decode_->running()) Mark("a read ended after the end");
    if (forced.has_value() || fabric_closed_ || Fault()) {
      Mark("a read failed");
      decode_->OnReadFailed(ordinal, forced.value_or(absl::UnavailableError("gone")), actions);
    } else {
      // A source that was unpinned may hold anything: a reader that comes too late fails its seal.
      const bool bad = Fault() || (source_reused_ && Chance(2));
      if (bad) Mark("bits flipped");
      if (!bad) arrived_good_.insert({ordinal, true});
      decode_->OnReadDone(ordinal, bad ? SealFault::kWrongChecksum : testing::Good(ordinal, tokens_), actions);
    }
    Perform(actions);
    PollWindow();
  }
  void GiveOther() {
    if (other_.held_bytes() == 0) return;
    window_->Give(other_, kPageBytes);
    PollWindow();
  }
  void PollWindow() {
    DecodeActions actions;
    if (decode_->waiting_for_window()) Mark("waited for the window");
    decode_->OnWindowFree(actions);
    Perform(actions);
  }

  // ---- clocks and people
  void Tick() {
    now_ += Chance(50) ? milliseconds(500) : milliseconds(10 + Draw(90));
    DecodeActions decode_actions;
    PrefillActions prefill_actions;
    decode_->OnTick(now_, decode_actions);
    prefill_->OnTick(now_, prefill_actions);
    if (testing::Count<EndStream>(prefill_actions) > 0) Mark("prefill gave decode up");
    Perform(decode_actions);
    Perform(prefill_actions);
  }
  void DisturbSomething() {
    if (!Fault()) return;
    DecodeActions actions;
    switch (Draw(5)) {
      case 0:
        if (decode_->running()) Mark(decode_->reads_out() > 0 ? "cancelled with reads out" : "cancelled");
        if (decode_->complete()) Mark("cancelled after completion");
        decode_->OnCancel(actions);
        break;
      case 1: {
        const AnnouncedPage page = testing::Page(static_cast<uint32_t>(Draw(pages_)), tokens_);
        decode_->OnAnnounced(kEarlier, {&page, 1}, now_, actions);
        break;
      }
      case 2: {  // an announcement long after its page, also of one that was not wanted
        const AnnouncedPage page = testing::Page(static_cast<uint32_t>(Draw(pages_)), tokens_);
        decode_->OnAnnounced(kAttempt, {&page, 1}, now_, actions);
        break;
      }
      default:
        return BreakStream();
    }
    Perform(actions);
  }

  // ---- the decode worker
  void Perform(const DecodeActions& actions) {
    DecodeActions after;  // of an adoption that failed; the rest of `actions` comes first
    for (const DecodeAction& action : actions) {
      if (Failed()) return;
      EXPECT_FALSE(released_) << "nothing is done after the release";
      if (const auto* read = std::get_if<IssueRead>(&action)) OnIssueRead(*read);
      if (const auto* adopt = std::get_if<Adopt>(&action); adopt != nullptr && !OnAdopt(*adopt)) {
        decode_->OnAdoptFailed(absl::DataLossError("tag"), after);
      }
      if (std::holds_alternative<CloseStream>(action) && stream_open_) {
        stream_open_ = false;
        decode_told_ = true;
      }
      if (std::holds_alternative<ClosePeer>(action)) {
        Mark("closed a silent peer");
        EXPECT_EQ(++peer_closed_, 1);
        fabric_closed_ = true;
      }
      if (std::holds_alternative<Complete>(action) && decode_->complete()) OnComplete();
      if (std::holds_alternative<Fail>(action)) {
        EXPECT_EQ(++terminals_, 1) << "one terminal";
      }
      if (std::holds_alternative<ReleasePages>(action)) OnRelease();
    }
    if (!after.empty()) return Perform(after);
    CheckAlways();
  }
  void OnIssueRead(const IssueRead& read) {
    EXPECT_TRUE(read_once_.insert({read.page.ordinal, true}).second) << "I4: a page is read at most once";
    EXPECT_GE(read.page.ordinal, first_page_);
    EXPECT_LT(read.page.ordinal, pages_);
    EXPECT_EQ(read.page.seal.identity, testing::Identity(read.page.ordinal)) << "judged before the read";
    reads_.insert(read.page.ordinal);
  }
  bool OnAdopt(const Adopt& adopt) {
    EXPECT_TRUE(arrived_good_.contains(adopt.ordinal)) << "I4: only what was verified";
    EXPECT_TRUE(adopted_.insert({adopt.ordinal, true}).second);
    if (!Fault()) return true;
    Mark(decode_->complete() ? "the last adoption failed" : "an adoption failed");
    return false;
  }
  void OnComplete() {
    Mark("completed");
    EXPECT_EQ(++terminals_, 1) << "one terminal";
    EXPECT_EQ(adopted_.size(), pages_ - first_page_) << "I5: full coverage";
    EXPECT_TRUE(reads_.empty());
  }
  void OnRelease() {
    released_ = true;
    EXPECT_EQ(terminals_, 1);
    EXPECT_FALSE(decode_->complete()) << "never together with Complete";
    EXPECT_TRUE(reads_.empty()) << "I7: no release while a read is out";
  }
  void CheckAlways() {
    EXPECT_EQ(decode_->reads_out(), reads_.size());
    EXPECT_EQ(window_->in_flight_bytes(), reads_.size() * kPageBytes + other_.held_bytes());
    EXPECT_LE(window_->most_bytes(), std::max(kPageBytes, window_bytes_));
    EXPECT_LE(cap_->most_bytes(), std::max(kPageBytes, cap_bytes_));
    EXPECT_EQ(decode_->complete() && decode_->released(), false);
  }

  // Whatever happened: the streams end, the reads end, and everything is let go.
  void Drain() {
    if (decode_->running()) {
      Mark("cancelled at the end");
      DecodeActions actions;
      decode_->OnCancel(actions);
      Perform(actions);
    }
    while (!reads_.empty() && !Failed()) EndRead(absl::UnavailableError("closed"));
    BreakStream();
    while (!to_decode_.empty()) DeliverToDecode();
    DeliverToDecode();
    DeliverToPrefill();
    while (other_.held_bytes() > 0) GiveOther();
    EXPECT_EQ(terminals_, 1) << "exactly one terminal";
    EXPECT_NE(decode_->complete(), decode_->released()) << "completed or released";
    EXPECT_TRUE(prefill_->closed());
    EXPECT_FALSE(prefill_->pinned());
    EXPECT_EQ(unpinned_, admitted_sent_ > 0 || unpinned_ > 0 ? 1 : 0) << "what was reserved was let go";
    EXPECT_EQ(window_->in_flight_bytes() + cap_->in_flight_bytes(), 0u);
    EXPECT_EQ(window_->waiting() + cap_->waiting(), 0u);
    if (decode_->stale_messages() > 0) Mark("stale messages");
    if (prefill_->wrong_messages() > 0) Mark("a wrong covered count");
  }
  void Mark(const std::string& name) { ++marks_[name]; }

  std::mt19937_64 random_;
  Marks& marks_;
  uint64_t tokens_ = 0, faults_ = 0, steps_ = 0;
  size_t cap_bytes_ = 0, window_bytes_ = 0;
  uint32_t pages_ = 0, first_page_ = 0, computed_ = 0, announced_ = 0;
  Time now_{};
  std::unique_ptr<TransferWindow> cap_, window_;
  TransferWindow::Share other_;
  std::unique_ptr<DecodeHandoff> decode_;
  std::unique_ptr<PrefillHandoff> prefill_;
  std::deque<std::vector<AnnouncedPage>> to_decode_;
  std::optional<absl::Status> stream_end_;
  std::set<uint32_t> reads_;
  std::map<uint32_t, bool> read_once_, arrived_good_, adopted_;
  bool stream_open_ = true, decode_told_ = false, answered_ = false, fabric_closed_ = false, source_reused_ = false;
  bool released_ = false;
  int terminals_ = 0, unpinned_ = 0, prefill_ends_ = 0, peer_closed_ = 0, admitted_sent_ = 0;
};

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(HandoffRandomTest, InvariantsHoldInEverySchedule) {
  Marks marks;
  if (const uint64_t seed = FromEnvironment("COFFERDAM_HANDOFF_SEED", 0); seed != 0) {
    World(seed, marks).Run();
    return;
  }
  const uint64_t schedules = FromEnvironment("COFFERDAM_HANDOFF_SCHEDULES", 100'000);
  for (uint64_t seed = 1; seed <= schedules; ++seed) {
    World(seed, marks).Run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ": run again with COFFERDAM_HANDOFF_SEED=" << seed;
  }
  for (const char* name : {"refused",
                           "reserved after the stream was closed",
                           "computation failed",
                           "a step ended after the stream was closed",
                           "unpinned under a reader",
                           "announced twice",
                           "wrong announcement",
                           "decode learnt of the stream's end before coverage",
                           "a read ended after the end",
                           "a read failed",
                           "bits flipped",
                           "waited for the window",
                           "prefill gave decode up",
                           "cancelled with reads out",
                           "cancelled",
                           "cancelled after completion",
                           "closed a silent peer",
                           "an adoption failed",
                           "the last adoption failed",
                           "completed",
                           "stale messages",
                           "a wrong covered count"}) {
    EXPECT_GT(marks[name], 0u) << "never reached: " << name;
  }
  for (const auto& [name, count] : marks) RecordProperty(name, std::to_string(count));
}

}  // namespace
}  // namespace cofferdam::handoff
