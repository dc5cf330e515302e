// The tenure log of one worker: who owned which page when, kept on disk beyond the worker's life.
//
//   engine's thread ── Append ──▶ queue (bounded) ──▶ one writer thread ──▶ ROLE-BOOT-NUMBER.jsonl
//
// A full queue or a full disk never holds a request up. What is lost is counted, and a Gap in the log says where.
#ifndef COFFERDAM_TENURE_LOG_H_
#define COFFERDAM_TENURE_LOG_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "tenure/folder.h"
#include "tenure/log_file.h"
#include "tenure/record.h"
#include "tenure/time.h"

namespace cofferdam::tenure {

struct LogOptions {
  std::string folder{};
  Role role = Role::kDecode;
  BootId boot{};
  // For the Boot record.
  uint64_t pages = 0;
  uint64_t page_tokens = 0;
  std::string version{};

  uint64_t max_file_bytes = uint64_t{16} << 20;  // a single longer line gets a file of its own
  Retention retention{};
  // Records that wait for the writer; what does not fit is dropped. Incidents have room of their own beyond it.
  size_t max_queue = 65536;
  size_t max_queue_bytes = size_t{64} << 20;
  size_t max_queued_incidents = 4096;
  std::chrono::milliseconds retry = std::chrono::milliseconds(500);  // after a disk error
  std::function<Micros()> clock = WallClock;                         // called from any thread
};

// Thread-safe. The destructor writes what is queued; with a disk that still fails it tries once and gives the rest up.
class Log {
 public:
  using Options = LogOptions;

  // Makes the folder (0700) and the first file (0600), removes old files, and starts the writer.
  // Errors: InvalidArgument without a folder; Unavailable when folder or file cannot be made.
  static absl::StatusOr<std::unique_ptr<Log>> Open(Options options);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // Fills in the record's stamp (a time other than 0 stays) and queues it. Never waits for the disk. An incident reaches the
  // disk (fdatasync) before the records after it are written.
  void Append(Record record) CD_EXCLUDES(mutex_);

  // Waits until all that was appended is written. False when `timeout` passed.
  bool Flush(std::chrono::milliseconds timeout) CD_EXCLUDES(mutex_);

  // Records that are not in the log: the queue was full, or the disk failed until the end.
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  // Operations on the disk that failed. A write that is tried again counts each time.
  uint64_t errors() const { return errors_.load(std::memory_order_relaxed); }

 private:
  explicit Log(Options options);

  void Push(Record record, size_t bytes) CD_REQUIRES(mutex_);
  void PushGap() CD_REQUIRES(mutex_);
  // The next records, at least one; none when the log is closed and all are written.
  std::vector<Record> Take() CD_EXCLUDES(mutex_);
  // Between a failure and the next try. False when the log is being closed.
  bool AwaitRetry() CD_EXCLUDES(mutex_);

  // The writer thread's.
  void Run();
  void WriteBatch(const std::vector<Record>& records);
  bool WriteOut(std::string& out);
  absl::Status NextFile();
  void Failed(const std::string& what);

  const Options options_;
  const std::string head_;  // the Boot record's line, with which every file begins
  LogFile file_;
  Micros next_sweep_ = 0;
  bool gave_up_ = false;
  std::optional<std::chrono::steady_clock::time_point> last_complaint_;

  Mutex mutex_;
  CondVar queued_, written_, closing_changed_;
  std::deque<std::pair<Record, size_t>> queue_ CD_GUARDED_BY(mutex_);  // with the bytes it counts for
  size_t plain_ CD_GUARDED_BY(mutex_) = 0;                             // records in the queue that are no incidents or gaps
  size_t incidents_ CD_GUARDED_BY(mutex_) = 0;
  size_t bytes_ CD_GUARDED_BY(mutex_) = 0;
  Gap missing_ CD_GUARDED_BY(mutex_);          // since the last one in the queue
  bool writing_ CD_GUARDED_BY(mutex_) = true;  // the writer begins with the Boot record
  bool closing_ CD_GUARDED_BY(mutex_) = false;

  std::atomic<uint64_t> dropped_ = 0, errors_ = 0;
  std::thread writer_;  // the last member: it uses the others
};

}  // namespace cofferdam::tenure

#endif  // COFFERDAM_TENURE_LOG_H_
