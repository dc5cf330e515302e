#include "tenure/log_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace cofferdam::tenure {

absl::Status LogFile::Create(const std::string& folder, FileId file) {
  Close();
  if (absl::Status status = MakeFolder(folder); !status.ok()) return status;
  constexpr uint32_t kTries = 1000;  // of another log of the same boot, which nobody should have
  for (uint32_t i = 0; i < kTries; ++i, ++file.number) {
    const std::string path = absl::StrCat(folder, "/", FileName(file));
    fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd_ >= 0) {
      // Says that somebody writes here: see RemoveOldFiles. Where locks do not work, age alone protects the file.
      flock(fd_, LOCK_EX | LOCK_NB);
      id_ = file;
      return absl::OkStatus();
    }
    if (errno == EEXIST) continue;
    return absl::UnavailableError(
        absl::StrCat(path, " cannot be made: ", std::error_code(errno, std::generic_category()).message()));
  }
  return absl::UnavailableError(absl::StrCat(folder, " has no free name for a log file"));
}

void LogFile::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  size_ = 0;
}

bool LogFile::usable() const {
  struct stat found {};
  return fd_ >= 0 && fstat(fd_, &found) == 0 && found.st_nlink > 0;
}

size_t LogFile::Write(std::string_view bytes, int& error) {
  ssize_t written = 0;
  do {
    written = write(fd_, bytes.data(), bytes.size());
  } while (written < 0 && errno == EINTR);
  if (written <= 0) {
    error = written < 0 ? errno : EIO;
    return 0;
  }
  size_ += static_cast<uint64_t>(written);
  return static_cast<size_t>(written);
}

void LogFile::TakeBack(size_t bytes) {
  if (bytes == 0 || fd_ < 0) return;
  if (ftruncate(fd_, static_cast<off_t>(size_ - bytes)) == 0) size_ -= bytes;  // else the reader counts one line that is cut off
}

bool LogFile::Sync() { return fdatasync(fd_) == 0; }

}  // namespace cofferdam::tenure
