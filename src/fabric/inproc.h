// A fabric inside one process, for tests: reads can be paused, delayed, corrupted and failed at any stage.
#ifndef COFFERDAM_FABRIC_INPROC_H_
#define COFFERDAM_FABRIC_INPROC_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "fabric/fabric.h"

namespace cofferdam::fabric {

// What the test wants of the reads of all readers that share it. Thread-safe; outlives them (shared).
class InprocFaults {
 public:
  // Read number n, counted from 1 over all readers in the order in which they start.
  using Corrupt = std::function<void(uint64_t read, std::span<std::byte> arrived)>;
  using Fail = std::function<absl::Status(uint64_t read)>;

  // Paused, a read waits before its first byte, or with `after_copy` when all bytes have landed and its end was not told yet.
  void Pause(bool after_copy = false);
  void Resume();
  void SetDelay(std::chrono::milliseconds delay);
  // Changes bytes that have arrived. It runs on the fabric's thread.
  void SetCorrupt(Corrupt corrupt);
  // An error of it ends the read without a byte.
  void SetFail(Fail fail);
  // Waits until `reads` are held by Pause at this moment. False when `timeout` passed.
  bool AwaitPaused(uint64_t reads, std::chrono::milliseconds timeout);
  uint64_t started() const;

 private:
  friend class InprocReader;
  mutable Mutex mutex_;
  CondVar changed_;
  bool pause_before_ CD_GUARDED_BY(mutex_) = false;
  bool pause_after_ CD_GUARDED_BY(mutex_) = false;
  uint64_t paused_ CD_GUARDED_BY(mutex_) = 0;
  uint64_t started_ CD_GUARDED_BY(mutex_) = 0;
  std::chrono::milliseconds delay_ CD_GUARDED_BY(mutex_){0};
  Corrupt corrupt_ CD_GUARDED_BY(mutex_);
  Fail fail_ CD_GUARDED_BY(mutex_);
};

// Reads `memory`, which is not owned and outlives the reader, on a thread of its own, in order. `faults` may be null.
class InprocReader final : public Reader {
 public:
  InprocReader(std::span<const std::byte> memory, const RegionInfo& info, std::shared_ptr<InprocFaults> faults);
  ~InprocReader() override { Close(); }

  void Read(ReadRequest request, ReadDone done) override;
  void Close() override;
  const RegionInfo& region() const override { return info_; }
  bool alive() const override;
  // As if the source had died: reads that have not copied yet, and all later ones, fail.
  void KillSource();

 private:
  void Main();
  absl::Status Perform(const ReadRequest& request);
  absl::Status WaitWhile(bool InprocFaults::*paused);
  absl::Status CheckOpen() const;

  const std::span<const std::byte> memory_;
  const RegionInfo info_;
  const std::shared_ptr<InprocFaults> faults_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::pair<ReadRequest, ReadDone>> queue_ CD_GUARDED_BY(mutex_);
  bool closed_ CD_GUARDED_BY(mutex_) = false;
  bool source_gone_ CD_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;
  std::jthread thread_;
  const std::thread::id thread_id_;
};

}  // namespace cofferdam::fabric

#endif  // COFFERDAM_FABRIC_INPROC_H_
