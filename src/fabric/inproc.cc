#include "fabric/inproc.h"

#include <algorithm>

#include "base/check.h"
#include "fabric/bounds.h"

namespace cofferdam::fabric {

void InprocFaults::Pause(bool after_copy) {
  MutexLock lock(mutex_);
  (after_copy ? pause_after_ : pause_before_) = true;
}

void InprocFaults::Resume() {
  MutexLock lock(mutex_);
  pause_before_ = pause_after_ = false;
  changed_.NotifyAll();
}

void InprocFaults::SetDelay(std::chrono::milliseconds delay) {
  MutexLock lock(mutex_);
  delay_ = delay;
}

void InprocFaults::SetCorrupt(Corrupt corrupt) {
  MutexLock lock(mutex_);
  corrupt_ = std::move(corrupt);
}

void InprocFaults::SetFail(Fail fail) {
  MutexLock lock(mutex_);
  fail_ = std::move(fail);
}

bool InprocFaults::AwaitPaused(uint64_t reads, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (paused_ < reads) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds::zero()) return false;
    changed_.WaitFor(mutex_, left);
  }
  return true;
}

uint64_t InprocFaults::started() const {
  MutexLock lock(mutex_);
  return started_;
}

InprocReader::InprocReader(std::span<const std::byte> memory, const RegionInfo& info, std::shared_ptr<InprocFaults> faults)
    : memory_(memory),
      info_(info),
      faults_(faults != nullptr ? std::move(faults) : std::make_shared<InprocFaults>()),
      thread_([this] { Main(); }),
      thread_id_(thread_.get_id()) {}

void InprocReader::Read(ReadRequest request, ReadDone done) {
  {
    MutexLock lock(mutex_);
    if (!closed_) {
      queue_.emplace_back(std::move(request), std::move(done));
      changed_.NotifyOne();
      return;
    }
  }
  done(absl::UnavailableError("the fabric connection is closed"));
}

void InprocReader::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }
  {
    MutexLock lock(faults_->mutex_);  // the reader may wait there
    faults_->changed_.NotifyAll();
  }
  CD_CHECK(std::this_thread::get_id() != thread_id_, "a reader is not closed on its own thread");
  MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

bool InprocReader::alive() const { return CheckOpen().ok(); }

void InprocReader::KillSource() {
  {
    MutexLock lock(mutex_);
    source_gone_ = true;
  }
  MutexLock lock(faults_->mutex_);
  faults_->changed_.NotifyAll();
}

absl::Status InprocReader::CheckOpen() const {
  MutexLock lock(mutex_);
  if (closed_) return absl::UnavailableError("the fabric connection was closed");
  if (source_gone_) return absl::UnavailableError("the source of the pages is gone");
  return absl::OkStatus();
}

absl::Status InprocReader::WaitWhile(bool InprocFaults::*paused) {
  MutexLock lock(faults_->mutex_);
  if (!((*faults_).*paused)) return CheckOpen();
  ++faults_->paused_;
  faults_->changed_.NotifyAll();
  while ((*faults_).*paused && CheckOpen().ok()) faults_->changed_.Wait(faults_->mutex_);
  --faults_->paused_;
  return CheckOpen();
}

absl::Status InprocReader::Perform(const ReadRequest& request) {
  uint64_t number = 0;
  std::chrono::milliseconds delay{0};
  InprocFaults::Corrupt corrupt;
  InprocFaults::Fail fail;
  {
    MutexLock lock(faults_->mutex_);
    number = ++faults_->started_;
    delay = faults_->delay_;
    corrupt = faults_->corrupt_;
    fail = faults_->fail_;
  }
  if (absl::Status status = WaitWhile(&InprocFaults::pause_before_); !status.ok()) return status;
  std::this_thread::sleep_for(delay);
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (absl::Status status = CheckBounds(request, info_.region, memory_.size()); !status.ok()) return status;
  if (fail) {
    if (absl::Status status = fail(number); !status.ok()) return status;
  }
  std::ranges::copy(memory_.subspan(request.source_offset, request.destination.size()), request.destination.begin());
  if (corrupt) corrupt(number, request.destination);
  return WaitWhile(&InprocFaults::pause_after_);
}

void InprocReader::Main() {
  while (true) {
    std::pair<ReadRequest, ReadDone> next;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !closed_) changed_.Wait(mutex_);
      if (queue_.empty()) return;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    next.second(Perform(next.first));
  }
}

}  // namespace cofferdam::fabric
