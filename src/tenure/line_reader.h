// The lines of a file, one after the other, in memory that does not grow with the file.
#ifndef COFFERDAM_TENURE_LINE_READER_H_
#define COFFERDAM_TENURE_LINE_READER_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace cofferdam::tenure {

// Not thread-safe.
class LineReader {
 public:
  enum class Result : uint8_t { kLine, kTooLong, kCutOff, kEnd, kFailed };
  static constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

  // Reads the first `limit` bytes of a regular file. A file that cannot be opened fails at the first line.
  explicit LineReader(const std::string& path, uint64_t limit = kAll);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // kLine: `line`, without its newline, is valid until the next call. kTooLong: a line over kMaxLineBytes was passed over.
  // kCutOff: bytes without a newline at the end; kEnd follows. kFailed: see error(); the file can be read no further.
  Result Next(std::string_view& line);

  const std::string& error() const { return error_; }
  uint64_t bytes() const { return bytes_; }  // read so far

 private:
  bool Fill();

  int fd_ = -1;
  uint64_t limit_;
  uint64_t bytes_ = 0;
  std::string error_;
  std::vector<char> buffer_;
  size_t begin_ = 0, scanned_ = 0, end_ = 0;
  bool skipping_ = false;  // inside of a line that is too long
};

}  // namespace cofferdam::tenure

#endif  // COFFERDAM_TENURE_LINE_READER_H_
