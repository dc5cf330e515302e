// How many bytes of reads may be in flight: per peer, and over all peers.
#ifndef COFFERDAM_HANDOFF_TRANSFER_WINDOW_H_
#define COFFERDAM_HANDOFF_TRANSFER_WINDOW_H_

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace cofferdam::handoff {

// One thread. A window that is empty admits one page whatever its size, so that it can never be too small to move.
class TransferWindow {
 public:
  // `all_peers`, unless null, is the cap over all peers and outlives this window.
  explicit TransferWindow(size_t limit_bytes, TransferWindow* all_peers = nullptr) : limit_bytes_(limit_bytes), all_peers_(all_peers) {}

  // Takes `bytes` when they fit here and in the cap; they are given back when the read has ended, however it ended.
  bool TryTake(size_t bytes) {
    if (!Fits(bytes) || (all_peers_ != nullptr && !all_peers_->TryTake(bytes))) return false;
    in_flight_bytes_ += bytes;
    most_bytes_ = std::max(most_bytes_, in_flight_bytes_);
    return true;
  }
  void Give(size_t bytes) {
    CD_CHECK(bytes <= in_flight_bytes_, "a window gets back what was taken");
    in_flight_bytes_ -= bytes;
    if (all_peers_ != nullptr) all_peers_->Give(bytes);
  }
  size_t in_flight_bytes() const { return in_flight_bytes_; }
  size_t most_bytes() const { return most_bytes_; }

 private:
  bool Fits(size_t bytes) const { return in_flight_bytes_ == 0 || (bytes <= limit_bytes_ && in_flight_bytes_ <= limit_bytes_ - bytes); }

  const size_t limit_bytes_;
  TransferWindow* const all_peers_;
  size_t in_flight_bytes_ = 0;
  size_t most_bytes_ = 0;
};

}  // namespace cofferdam::handoff

#endif  // COFFERDAM_HANDOFF_TRANSFER_WINDOW_H_
