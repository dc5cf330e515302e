// The same-host fabric: the source's pool is a sealed memfd, handed over a Unix socket and mapped read-only.
#ifndef COFFERDAM_FABRIC_SHM_H_
#define COFFERDAM_FABRIC_SHM_H_

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "fabric/fabric.h"

namespace cofferdam::fabric {

// An accept thread hands the descriptor to peers of the same user, and keeps each connection open as a sign of life.
class ShmSource final : public Source {
 public:
  static absl::StatusOr<std::unique_ptr<Source>> Serve(const std::string& path, int fd, const RegionInfo& info);
  ~ShmSource() override;

 private:
  ShmSource(std::string path, int listener, int wake, int fd, const RegionInfo& info);
  void Main();
  void Accept();

  const std::string path_;
  const int listener_, wake_, fd_;
  const RegionInfo info_;
  std::vector<int> peers_;  // the accept thread's
  std::jthread thread_;
};

// Maps only what is sealed, of the right size and layout, and served by the same user. A copy thread of its own reads in order. The
// mapping stays until the last read has completed.
class ShmReader final : public Reader {
 public:
  static absl::StatusOr<std::unique_ptr<Reader>> Connect(const std::string& path, const kv::Digest128& layout_id,
                                                         std::chrono::milliseconds timeout);
  ~ShmReader() override;

  void Read(ReadRequest request, ReadDone done) override;
  void Close() override;
  const RegionInfo& region() const override { return info_; }
  bool alive() const override;

 private:
  ShmReader(int socket, std::span<const std::byte> memory, const RegionInfo& info);
  void Main();
  absl::Status Copy(const ReadRequest& request) const;

  const int socket_;
  const std::span<const std::byte> memory_;
  const RegionInfo info_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::pair<ReadRequest, ReadDone>> queue_ CD_GUARDED_BY(mutex_);
  std::atomic<bool> closed_{false};
  Mutex join_mutex_;
  std::jthread thread_;
  const std::thread::id thread_id_;
};

}  // namespace cofferdam::fabric

#endif  // COFFERDAM_FABRIC_SHM_H_
