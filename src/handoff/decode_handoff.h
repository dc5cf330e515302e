// The decode worker's side of a handoff: which page to read, when all is covered, and when to let go.
//
// A sans-IO machine: events in, actions out; no socket, thread or clock. Invariants kept here:
//   I4   a page is read once, after its seal was found to be the expected one, and adopted after the bytes that
//        arrived were judged good;
//   I5   Complete comes when every page is adopted, counted by decode's own tokens; a stream that ends before has failed;
//   I8   messages of another attempt are counted and dropped;
//   I12  failure is final: nothing that comes later turns it into success.
// ReleasePages comes exactly once after a failure or a cancel, and only when no own read is out. A timeout closes the
// stream and the peer's connection, which ends the reads; it never releases anything.
//
// Wrong messages: a page outside of the prompt, or with a seal that is not the expected one, fails the attempt; one
// announced twice, or before the first page wanted, is counted as stale and dropped. After the end every event is harmless.
#ifndef COFFERDAM_HANDOFF_DECODE_HANDOFF_H_
#define COFFERDAM_HANDOFF_DECODE_HANDOFF_H_

#include <cstdint>
#include <deque>
#include <span>
#include <variant>
#include <vector>

#include "handoff/transfer_window.h"
#include "handoff/types.h"
#include "kv/seal.h"

namespace cofferdam::handoff {

// The driver reads the page into its own page `ordinal`, and reports OnReadDone or OnReadFailed, exactly once.
struct IssueRead {
  AnnouncedPage page;
  kv::Digest128 expected_identity{};
  uint32_t expected_tokens = 0;
};
// The driver checks tenure and tags, puts the page into the page table, or reports OnAdoptFailed before any other event.
struct Adopt {
  uint32_t ordinal = 0;
  kv::Verified page;
};
struct CloseStream {};
// The peer was silent: its connection goes, which completes its reads with an error.
struct ClosePeer {};
// Everything is covered: the sequence may run. Void when OnAdoptFailed was reported for an Adopt before it: complete() says so.
struct Complete {};
struct Fail {
  absl::Status status;
  bool retry_elsewhere = false;
};
struct ReleasePages {};
using DecodeAction = std::variant<IssueRead, Adopt, CloseStream, ClosePeer, Complete, Fail, ReleasePages>;
using DecodeActions = std::vector<DecodeAction>;

// One thread. `window` is not owned and outlives the machine. REQUIRES: all reads have ended when it is destroyed, or the
// reader was closed; actions are performed in order, all of them, also those behind a Fail.
class DecodeHandoff {
 public:
  struct Options {
    AttemptId attempt;
    kv::Digest128 layout_id{};
    std::vector<kv::Digest128> identities;  // of the pages of tokens 0 to covered_tokens - 1, from decode's own tokens
    uint64_t covered_tokens = 0;            // at least 1
    uint32_t first_page = 0;                // pages before it are decode's already; at least one page is wanted
    uint32_t page_tokens = 0;
    size_t page_bytes = 0;     // of one read
    Duration silence_limit{};  // without a word of the peer for longer, it is closed
    Duration stall_limit{};    // a peer that talks, but takes no step, announces nothing and ends no read for longer, has failed
  };

  DecodeHandoff(Options options, TransferWindow& window, Time now);
  ~DecodeHandoff() { window_.StopWaiting(share_); }
  DecodeHandoff(const DecodeHandoff&) = delete;
  DecodeHandoff& operator=(const DecodeHandoff&) = delete;

  // Messages of the stream. `attempt` is what the message carried.
  void OnAdmitted(const AttemptId& attempt, Time now, DecodeActions& actions);
  void OnAnnounced(const AttemptId& attempt, std::span<const AnnouncedPage> pages, Time now, DecodeActions& actions);
  // `steps` counts the peer's engine steps: it talks off its compute threads, so words alone prove no progress.
  void OnHeartbeat(const AttemptId& attempt, uint64_t steps, Time now, DecodeActions& actions);
  // A message that cannot be read. Whoever sends one is not waited for.
  void OnMalformed(const AttemptId& attempt, const absl::Status& reason, DecodeActions& actions);
  // However it ended: before full coverage any end is a failure.
  void OnStreamEnded(const absl::Status& status, DecodeActions& actions);

  // The end of a read that was issued, with the verdict on the bytes that arrived.
  void OnReadDone(uint32_t ordinal, const kv::Arrival& arrival, DecodeActions& actions);
  void OnReadFailed(uint32_t ordinal, const absl::Status& status, DecodeActions& actions);
  // The driver could not adopt (a tag was wrong): not the source's fault, and not retried.
  void OnAdoptFailed(const absl::Status& status, DecodeActions& actions);

  void OnCancel(DecodeActions& actions);
  // Bytes of the window, or of the cap over all peers, came back: the driver tells everybody who waits, oldest first.
  void OnWindowFree(DecodeActions& actions);
  // At least several times per silence limit. A driver whose own loop was late judges nobody for that time.
  void OnTick(Time now, DecodeActions& actions);

  bool running() const { return state_ == State::kRunning; }
  bool complete() const { return state_ == State::kComplete; }
  bool released() const { return released_; }
  uint32_t adopted_pages() const { return adopted_; }
  // With those before the first page: what a heartbeat tells the prefill worker.
  uint32_t covered_pages() const { return options_.first_page + adopted_; }
  bool waiting_for_window() const { return share_.waiting(); }
  uint32_t reads_out() const { return reads_out_; }
  uint64_t stale_messages() const { return stale_messages_; }
  uint32_t total_pages() const { return static_cast<uint32_t>(pages_.size()); }

 private:
  enum class State { kRunning, kComplete, kFailed };
  enum class PageState : uint8_t { kAwaited, kQueued, kReading, kDone };

  bool IsCurrent(const AttemptId& attempt);
  uint32_t ExpectedTokens(uint32_t ordinal) const;
  absl::Status CheckAnnounced(const AnnouncedPage& page) const;
  void IssueReads(DecodeActions& actions);
  void EndRead(uint32_t ordinal);
  void ClosePeerOnce(DecodeActions& actions);
  void FailWith(absl::Status status, bool retry_elsewhere, DecodeActions& actions);
  void ReleaseWhenQuiet(DecodeActions& actions);

  const Options options_;
  TransferWindow& window_;
  TransferWindow::Share share_;
  State state_ = State::kRunning;
  std::vector<PageState> pages_;
  std::deque<AnnouncedPage> queue_;  // announced, not read yet; at most one entry a page
  std::vector<kv::Seal> seals_;      // of pages being read
  uint32_t adopted_ = 0;
  uint32_t announced_ = 0;
  uint32_t reads_out_ = 0;
  bool read_ended_ = false;  // since the last tick
  bool peer_closed_ = false;
  bool released_ = false;
  uint64_t stale_messages_ = 0;
  uint64_t peer_steps_ = 0;
  Time last_heard_, last_progress_, last_tick_;
};

}  // namespace cofferdam::handoff

#endif  // COFFERDAM_HANDOFF_DECODE_HANDOFF_H_
