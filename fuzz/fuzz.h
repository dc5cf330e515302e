// What the fuzz targets share. A property that does not hold ends the process, as libFuzzer wants it: CD_CHECK.
#ifndef COFFERDAM_FUZZ_FUZZ_H_
#define COFFERDAM_FUZZ_FUZZ_H_

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace cofferdam::fuzz {

// Takes an input apart from its beginning. What is asked for beyond its end is zero, or empty.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : bytes_(data, size) {}

  uint8_t Byte() {
    const std::string_view one = Text(1);
    return one.empty() ? uint8_t{0} : static_cast<uint8_t>(one.front());
  }
  uint64_t Number(size_t bytes) {
    uint64_t number = 0;
    for (size_t i = 0; i < bytes; ++i) number = number << 8 | Byte();
    return number;
  }
  // At most so many bytes. Valid as long as the input.
  std::string_view Text(size_t most) {
    const size_t size = std::min(most, bytes_.size());
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()), size);
    bytes_ = bytes_.subspan(size);
    return text;
  }
  std::string_view Rest() { return Text(bytes_.size()); }
  bool empty() const { return bytes_.empty(); }

 private:
  std::span<const uint8_t> bytes_;
};

// A regular file in memory alone, which is opened by its path.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    CD_CHECK(fd_ >= 0, "a memfd can be made");
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }
  void Write(std::string_view bytes) {
    CD_CHECK(ftruncate(fd_, 0) == 0 && pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
             "memory can be written");
  }

 private:
  int fd_;
  std::string path_;
};

}  // namespace cofferdam::fuzz

#endif  // COFFERDAM_FUZZ_FUZZ_H_
