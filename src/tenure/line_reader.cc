#include "tenure/line_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "tenure/record.h"

namespace cofferdam::tenure {
namespace {

constexpr size_t kReadBytes = size_t{256} << 10;

std::string ErrnoText() { return std::error_code(errno, std::generic_category()).message(); }

}  // namespace

LineReader::LineReader(const std::string& path, uint64_t limit) : limit_(limit), buffer_(kMaxLineBytes + kReadBytes) {
  // Not through links, and never waiting for a pipe that somebody put there.
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat found {};
  if (fd_ < 0 || fstat(fd_, &found) != 0) {
    error_ = ErrnoText();
  } else if (!S_ISREG(found.st_mode)) {
    error_ = "not a regular file";
  }
}

LineReader::~LineReader() {
  if (fd_ >= 0) close(fd_);
}

LineReader::Result LineReader::Next(std::string_view& line) {
  while (true) {
    if (!error_.empty()) return Result::kFailed;
    const auto* newline = static_cast<const char*>(std::memchr(buffer_.data() + scanned_, '\n', end_ - scanned_));
    if (newline != nullptr) {
      const auto at = static_cast<size_t>(newline - buffer_.data());
      line = std::string_view(buffer_.data() + begin_, at - begin_);
      begin_ = scanned_ = at + 1;
      if (std::exchange(skipping_, false) || line.size() > kMaxLineBytes) return Result::kTooLong;
      return Result::kLine;
    }
    scanned_ = end_;
    if (end_ - begin_ > kMaxLineBytes || skipping_) {
      skipping_ = true;
      begin_ = scanned_ = end_ = 0;
    }
    if (!Fill() && error_.empty()) {
      const bool rest = end_ > begin_ || skipping_;
      begin_ = scanned_ = end_;
      skipping_ = false;
      return rest ? Result::kCutOff : Result::kEnd;
    }
  }
}

bool LineReader::Fill() {
  if (buffer_.size() - end_ < kReadBytes) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    scanned_ -= begin_;
    begin_ = 0;
  }
  const size_t room = static_cast<size_t>(std::min<uint64_t>(std::min(buffer_.size() - end_, kReadBytes), limit_ - bytes_));
  ssize_t got = 0;
  do {
    got = read(fd_, buffer_.data() + end_, room);
  } while (got < 0 && errno == EINTR);
  if (got < 0) error_ = ErrnoText();
  if (got <= 0) return false;
  end_ += static_cast<size_t>(got);
  bytes_ += static_cast<uint64_t>(got);
  return true;
}

}  // namespace cofferdam::tenure
