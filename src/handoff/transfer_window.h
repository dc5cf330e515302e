// How many bytes of reads may be in flight: per peer, and over all peers.
#ifndef COFFERDAM_HANDOFF_TRANSFER_WINDOW_H_
#define COFFERDAM_HANDOFF_TRANSFER_WINDOW_H_

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "base/faults.h"

namespace cofferdam::handoff {

// One thread. A window that is empty admits one page whatever its size, so that it can never be too small to move.
//
// It is shared fairly: while somebody was refused and waits, nobody who already holds bytes goes beyond an equal part
// of the limit. So a long prompt that fills the window gives way as its reads end, in whatever order those who wait
// are asked again; a driver that asks them oldest first serves them first come, first served.
class TransferWindow {
 public:
  // What one user of the window holds. Owned by the user; empty again before it is destroyed or forgotten.
  class Share {
   public:
    size_t held_bytes() const { return held_bytes_; }
    bool waiting() const { return waiting_; }

   private:
    friend class TransferWindow;
    size_t held_bytes_ = 0;
    bool waiting_ = false;
  };

  // `all_peers`, unless null, is the cap over all peers and outlives this window.
  explicit TransferWindow(size_t limit_bytes, TransferWindow* all_peers = nullptr)
      : limit_bytes_(limit_bytes), all_peers_(all_peers) {}
  TransferWindow(const TransferWindow&) = delete;
  TransferWindow& operator=(const TransferWindow&) = delete;

  // Takes `bytes` when they fit here and in the cap; they are given back when the read has ended, however it ended.
  // Refused: `share` waits, and counts against the others, until it takes something or StopWaiting.
  [[nodiscard]] bool TryTake(Share& share, size_t bytes) {
    const bool fits = Fits(share, bytes) && (all_peers_ == nullptr || all_peers_->Fits(share, bytes));
    Update(share, share.held_bytes_ + (fits ? bytes : 0), !fits);
    return fits;
  }
  void Give(Share& share, size_t bytes) {
    CD_CHECK(bytes <= share.held_bytes_ && bytes <= in_flight_bytes_, "a window gets back what was taken");
    Update(share, share.held_bytes_ - bytes, share.waiting_);
  }
  void StopWaiting(Share& share) { Update(share, share.held_bytes_, false); }

  size_t in_flight_bytes() const { return in_flight_bytes_; }
  size_t most_bytes() const { return most_bytes_; }
  // Users that were refused and have taken nothing since.
  size_t waiting() const { return waiting_; }

 private:
  bool Fits(const Share& share, size_t bytes) const {
    if (in_flight_bytes_ == 0 && !FaultIsOn(Fault::kWindowBelowPage)) return true;
    if (bytes > limit_bytes_ || in_flight_bytes_ > limit_bytes_ - bytes) return false;
    const size_t others_waiting = waiting_ - (share.waiting_ ? 1 : 0);
    if (others_waiting == 0 || share.held_bytes_ == 0) return true;
    return share.held_bytes_ + bytes <= limit_bytes_ / users_;
  }
  static bool Uses(size_t held_bytes, bool waiting) { return held_bytes > 0 || waiting; }

  void Update(Share& share, size_t held_bytes, bool waiting) {
    for (TransferWindow* window = this; window != nullptr; window = window->all_peers_) {
      window->users_ -= Uses(share.held_bytes_, share.waiting_) ? 1 : 0;
      window->users_ += Uses(held_bytes, waiting) ? 1 : 0;
      window->waiting_ -= share.waiting_ ? 1 : 0;
      window->waiting_ += waiting ? 1 : 0;
      window->in_flight_bytes_ += held_bytes - share.held_bytes_;  // modulo 2^64, so that it may also sink
      window->most_bytes_ = std::max(window->most_bytes_, window->in_flight_bytes_);
    }
    share.held_bytes_ = held_bytes;
    share.waiting_ = waiting;
  }

  const size_t limit_bytes_;
  TransferWindow* const all_peers_;
  size_t in_flight_bytes_ = 0;
  size_t most_bytes_ = 0;
  size_t users_ = 0;  // shares that hold something or wait
  size_t waiting_ = 0;
};

}  // namespace cofferdam::handoff

#endif  // COFFERDAM_HANDOFF_TRANSFER_WINDOW_H_
