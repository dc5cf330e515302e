// One file of a tenure log, open for appending.
#ifndef COFFERDAM_TENURE_LOG_FILE_H_
#define COFFERDAM_TENURE_LOG_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tenure/folder.h"

namespace cofferdam::tenure {

// Owns the descriptor. Not thread-safe.
class LogFile {
 public:
  LogFile() = default;
  ~LogFile() { Close(); }
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // Makes a new file in `folder`, which is made when it is gone, with the first number from `file.number` on that is free.
  // Errors: Unavailable.
  absl::Status Create(const std::string& folder, FileId file);
  void Close();

  // False when there is none, or when somebody removed it: what is written would be lost.
  bool usable() const;
  // Bytes that were written, at most all of them; 0 with `error` set to the errno when none could be.
  size_t Write(std::string_view bytes, int& error);
  // Takes back the last `bytes` that were written, the beginning of a line that could not be ended.
  void TakeBack(size_t bytes);
  // False when the disk did not confirm.
  bool Sync();

  const FileId& id() const { return id_; }
  // 0 when none is open.
  uint64_t size() const { return size_; }

 private:
  int fd_ = -1;
  FileId id_;
  uint64_t size_ = 0;
};

}  // namespace cofferdam::tenure

#endif  // COFFERDAM_TENURE_LOG_FILE_H_
