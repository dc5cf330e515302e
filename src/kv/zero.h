// Zeroing of pages: past the caches, and on a thread of its own, off the step's path.
#ifndef COFFERDAM_KV_ZERO_H_
#define COFFERDAM_KV_ZERO_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/strong_id.h"

namespace cofferdam::kv {

// Writes zeros with non-temporal stores, so that what a step has in its caches stays there. They are visible to every thread
// that synchronises with this one afterwards. REQUIRES: 16-byte alignment and a multiple of 64 bytes, as pages have.
void ZeroBytes(std::span<std::byte> bytes);
bool IsZero(std::span<const std::byte> bytes);

// Zeroes what it is given, in order, on its own thread. Submit and TakeDone belong to the pool's thread. Its queue is bounded
// by the pool's pages: each is submitted once before it comes back.
class Zeroer {
 public:
  // `on_done` is called on the zeroer's thread after each page, and must not call back.
  explicit Zeroer(std::function<void()> on_done);
  // Zeroes what was submitted, then ends.
  ~Zeroer();
  Zeroer(const Zeroer&) = delete;
  Zeroer& operator=(const Zeroer&) = delete;

  void Submit(PageId page, std::span<std::byte> bytes);
  // The pages that were zeroed since the last call, oldest first.
  std::vector<PageId> TakeDone();

 private:
  struct Job {
    PageId page;
    std::span<std::byte> bytes;
  };
  void Main();

  const std::function<void()> on_done_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Job> jobs_ CD_GUARDED_BY(mutex_);
  std::vector<PageId> done_ CD_GUARDED_BY(mutex_);
  bool stopping_ CD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cofferdam::kv

#endif  // COFFERDAM_KV_ZERO_H_
