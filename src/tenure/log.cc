#include "tenure/log.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace cofferdam::tenure {
namespace {

constexpr size_t kBatch = 256;  // records that the writer takes at once, beyond the queue's bound
constexpr auto kComplainEvery = std::chrono::minutes(1);
constexpr Micros kSweepEvery = Micros{3600} * 1'000'000;

std::string HeadOf(const LogOptions& options) {
  std::string head;
  AppendLines(Boot{.stamp = {options.clock(), options.role, options.boot},
                   .pages = options.pages,
                   .page_tokens = options.page_tokens,
                   .version = options.version},
              head);
  return head;
}

// What a record takes of memory, about.
size_t BytesOf(const Record& record) {
  size_t bytes = sizeof(Record);
  if (const auto* started = std::get_if<Started>(&record)) {
    bytes += started->pages.capacity() * sizeof(PageTenure) + started->request_id.size() + started->domain.size();
  } else if (const auto* rejected = std::get_if<Rejected>(&record)) {
    bytes += rejected->request_id.size() + rejected->domain.size() + rejected->code.size();
  }
  return bytes;
}

bool IsPlain(const Record& record) { return !std::holds_alternative<Incident>(record) && !std::holds_alternative<Gap>(record); }

// Of the bytes before `end`, those behind the last newline: a line that is not ended.
size_t BegunBytes(const std::string& out, size_t end) {
  const size_t newline = end == 0 ? std::string::npos : out.rfind('\n', end - 1);
  return newline == std::string::npos ? end : end - newline - 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Log>> Log::Open(Options options) {
  if (options.folder.empty()) return absl::InvalidArgumentError("a tenure log needs a folder");
  std::unique_ptr<Log> log(new Log(std::move(options)));
  if (absl::Status status = log->NextFile(); !status.ok()) return status;
  log->writer_ = std::thread([&self = *log] { self.Run(); });
  return log;
}

Log::Log(Options options) : options_(std::move(options)), head_(HeadOf(options_)) {}

Log::~Log() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  queued_.NotifyAll();
  closing_changed_.NotifyAll();
  if (writer_.joinable()) writer_.join();
  if (dropped() > 0) log::warn("tenure log: {} records are missing in {}", dropped(), options_.folder);
}

void Log::Append(Record record) {
  Stamp& stamp = StampOf(record);
  stamp = {stamp.time != 0 ? stamp.time : options_.clock(), options_.role, options_.boot};
  const size_t bytes = BytesOf(record);
  {
    MutexLock lock(mutex_);
    const bool fits = std::holds_alternative<Incident>(record) ? incidents_ < options_.max_queued_incidents
                                                               : plain_ < std::max<size_t>(options_.max_queue, 1) &&
                                                                     (plain_ == 0 || bytes_ + bytes <= options_.max_queue_bytes);
    if (!fits) {
      if (missing_.records++ == 0) missing_.since = stamp.time;
      missing_.stamp = stamp;
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (missing_.records > 0) PushGap();
    Push(std::move(record), bytes);
  }
  queued_.NotifyOne();
}

void Log::Push(Record record, size_t bytes) {
  plain_ += IsPlain(record) ? 1 : 0;
  incidents_ += std::holds_alternative<Incident>(record) ? 1 : 0;
  bytes_ += bytes;
  queue_.emplace_back(std::move(record), bytes);
}

void Log::PushGap() { Push(std::exchange(missing_, Gap{}), sizeof(Record)); }

bool Log::Flush(std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (!queue_.empty() || missing_.records > 0 || writing_) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= std::chrono::steady_clock::duration::zero()) return false;
    written_.WaitFor(mutex_, left);
  }
  return true;
}

std::vector<Record> Log::Take() {
  MutexLock lock(mutex_);
  writing_ = false;
  if (queue_.empty() && missing_.records > 0) PushGap();
  while (queue_.empty() && !closing_) {
    written_.NotifyAll();
    queued_.Wait(mutex_);
  }
  std::vector<Record> records;
  while (!queue_.empty() && records.size() < kBatch) {
    auto& [record, bytes] = queue_.front();
    plain_ -= IsPlain(record) ? 1 : 0;
    incidents_ -= std::holds_alternative<Incident>(record) ? 1 : 0;
    bytes_ -= bytes;
    records.push_back(std::move(record));
    queue_.pop_front();
  }
  writing_ = true;
  return records;
}

bool Log::AwaitRetry() {
  const auto end = std::chrono::steady_clock::now() + options_.retry;
  MutexLock lock(mutex_);
  while (!closing_) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= std::chrono::steady_clock::duration::zero()) return true;
    closing_changed_.WaitFor(mutex_, left);
  }
  return false;
}

void Log::Run() {
  std::string head = head_;
  WriteOut(head);
  for (std::vector<Record> records = Take(); !records.empty(); records = Take()) {
    if (!gave_up_) {
      WriteBatch(records);
    } else {
      dropped_.fetch_add(records.size(), std::memory_order_relaxed);
    }
  }
}

void Log::WriteBatch(const std::vector<Record>& records) {
  std::string out;
  uint64_t in_out = 0;  // records
  const auto write = [&](bool sync) {
    if (gave_up_ || !WriteOut(out)) {
      dropped_.fetch_add(in_out, std::memory_order_relaxed);
    } else if (sync && !file_.Sync()) {
      errors_.fetch_add(1, std::memory_order_relaxed);
      Failed("an incident was not confirmed by the disk");
    }
    out.clear();
    in_out = 0;
  };
  for (const Record& record : records) {
    const size_t before = out.size();
    AppendLines(record, out);
    ++in_out;
    const uint64_t in_file = std::max<uint64_t>(file_.size(), head_.size());
    if (in_file + before > head_.size() && in_file + out.size() > options_.max_file_bytes) {
      std::string next = out.substr(before);
      out.resize(before);
      --in_out;
      write(false);
      file_.Close();  // WriteOut makes the next one
      out = std::move(next);
      in_out = 1;
    }
    if (const auto* gap = std::get_if<Gap>(&record)) Failed(absl::StrCat(gap->records, " records did not fit the queue"));
    if (std::holds_alternative<Incident>(record)) write(true);
  }
  write(false);
  if (const Micros now = options_.clock(); now >= next_sweep_ && file_.usable()) {
    RemoveOldFiles(options_.folder, file_.id(), options_.retention, now);
    next_sweep_ = now + kSweepEvery;
  }
}

bool Log::WriteOut(std::string& out) {
  size_t done = 0;
  int error = 0;
  while (done < out.size()) {
    if (!file_.usable()) {
      if (absl::Status status = NextFile(); !status.ok()) {
        errors_.fetch_add(1, std::memory_order_relaxed);
        Failed(std::string(status.message()));
        gave_up_ = !AwaitRetry();
        if (gave_up_) return false;
        continue;
      }
      // A line that the file before has the beginning of is written whole here.
      out = head_ + out.substr(done - BegunBytes(out, done));
      done = 0;
    }
    const size_t written = file_.Write(std::string_view(out).substr(done), error);
    done += written;
    if (written > 0) continue;
    errors_.fetch_add(1, std::memory_order_relaxed);
    Failed(absl::StrCat(FileName(file_.id()), " cannot be written: ", std::error_code(error, std::generic_category()).message()));
    gave_up_ = !AwaitRetry();
    const size_t begun = BegunBytes(out, done);
    // A file that has reached a limit of the system takes no more; an empty one would only push good files out.
    const bool leave = error == EFBIG && file_.size() > head_.size() + begun;
    if (gave_up_ || leave) file_.TakeBack(begun);
    if (gave_up_) return false;
    if (leave) file_.Close();
  }
  return true;
}

absl::Status Log::NextFile() {
  FileId next{options_.role, options_.boot, file_.id().number + 1};
  if (absl::Status status = file_.Create(options_.folder, next); !status.ok()) return status;
  const Micros now = options_.clock();
  RemoveOldFiles(options_.folder, file_.id(), options_.retention, now);
  next_sweep_ = now + kSweepEvery;
  return absl::OkStatus();
}

void Log::Failed(const std::string& what) {
  const auto now = std::chrono::steady_clock::now();
  if (last_complaint_.has_value() && now - *last_complaint_ < kComplainEvery) return;
  last_complaint_ = now;
  log::error("tenure log: {} ({} disk errors, {} records missing so far)", what, errors(), dropped());
}

}  // namespace cofferdam::tenure
