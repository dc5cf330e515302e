// The prefill worker's side of a handoff: a contractor that announces sealed pages and pins them while the stream lives.
//
// A sans-IO machine. It never ends a stream after its last seal: the decode worker does. Its pages are released exactly
// once, when the stream is over, for whatever reason; the pool fences them against a step that still writes (I7).
#ifndef COFFERDAM_HANDOFF_PREFILL_HANDOFF_H_
#define COFFERDAM_HANDOFF_PREFILL_HANDOFF_H_

#include <cstdint>
#include <variant>
#include <vector>

#include "handoff/types.h"

namespace cofferdam::handoff {

struct SendAdmitted {
  uint32_t pages = 0;
};
struct SendSealed {
  std::vector<AnnouncedPage> pages;
};
// The driver ends the stream with this status, and reports OnStreamClosed once it is over.
struct EndStream {
  absl::Status status;
};
// Stops computing and lets the pages go.
struct Unpin {};
using PrefillAction = std::variant<SendAdmitted, SendSealed, EndStream, Unpin>;
using PrefillActions = std::vector<PrefillAction>;

// One thread. Keyed by its stream: a late message of an earlier run cannot reach it. After the stream is closed every
// event is harmless; a wrong covered count of the peer is counted and dropped.
class PrefillHandoff {
 public:
  struct Options {
    uint32_t pages = 0;         // of the whole prompt; at least 1
    uint32_t first_page = 0;    // pages before it are not announced
    Duration silence_limit{};   // without a word of decode
    Duration progress_limit{};  // without a page covered, while pages are announced and not covered
  };

  PrefillHandoff(const Options& options, Time now);
  PrefillHandoff(const PrefillHandoff&) = delete;
  PrefillHandoff& operator=(const PrefillHandoff&) = delete;

  // The pool's answer; while it waits for pages, neither has come and nothing is held. Pages that come too late, to a
  // stream that is over, are let go at once.
  void OnReserved(PrefillActions& actions);
  void OnRefused(absl::Status status, PrefillActions& actions);
  // Pages sealed by the step that just ended, in order.
  void OnSealed(std::vector<AnnouncedPage> pages, PrefillActions& actions);
  // The computation failed; its pages are gone already.
  void OnComputeFailed(absl::Status status, PrefillActions& actions);
  // `covered_pages` counts from the prompt's start. More than was announced is no progress.
  void OnPeerHeartbeat(uint32_t covered_pages, Time now);
  // At least several times per silence limit. A driver whose own loop was late judges nobody for that time.
  void OnTick(Time now, PrefillActions& actions);
  // Cancelled, broken, or ended by us. Nothing is sent any more.
  void OnStreamClosed(PrefillActions& actions);

  bool pinned() const { return pinned_; }
  bool closed() const { return state_ == State::kClosed; }
  uint64_t wrong_messages() const { return wrong_messages_; }

 private:
  enum class State { kWaiting, kRunning, kEnding, kClosed };

  void End(absl::Status status, PrefillActions& actions);

  const Options options_;
  State state_ = State::kWaiting;
  bool pinned_ = false;
  bool reserved_ = false;  // ever
  uint32_t next_page_ = 0;
  uint32_t covered_pages_ = 0;
  uint64_t wrong_messages_ = 0;
  Time last_heard_, last_progress_, last_tick_;
};

}  // namespace cofferdam::handoff

#endif  // COFFERDAM_HANDOFF_PREFILL_HANDOFF_H_
