#include "text/model_hash.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <regex>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace cofferdam::text {
namespace {

constexpr size_t kWindowBytes = size_t{64} << 20;
constexpr int kMaxParts = 9999;

struct StateDeleter {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};
using State = std::unique_ptr<XXH3_state_t, StateDeleter>;

class File {
 public:
  explicit File(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

absl::Status SystemError(const std::string& path, const char* what) {
  return absl::UnknownError(absl::StrCat(path, ": ", what, ": ", std::generic_category().message(errno)));
}

absl::Status AddFile(const std::string& path, XXH3_state_t* state) {
  const File file(path);
  struct stat facts {};
  if (file.fd() < 0 || fstat(file.fd(), &facts) != 0) return SystemError(path, "cannot open the model file");
  const auto size = static_cast<size_t>(facts.st_size);
  for (size_t at = 0; at < size; at += kWindowBytes) {
    const size_t length = std::min(kWindowBytes, size - at);
    void* window = mmap(nullptr, length, PROT_READ, MAP_PRIVATE, file.fd(), static_cast<off_t>(at));
    if (window == MAP_FAILED) return SystemError(path, "cannot map the model file");
    madvise(window, length, MADV_SEQUENTIAL);
    XXH3_128bits_update(state, window, length);
    munmap(window, length);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ModelFiles(const std::string& path) {
  static const std::regex kPart("^(.*)-([0-9]{5})-of-([0-9]{5})(\\.gguf)$");
  std::vector<std::string> files;
  std::smatch match;
  if (!std::regex_match(path, match, kPart)) {
    files.push_back(path);
  } else {
    if (match[2] != "00001") {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": give the first part of a split model (-00001-of-", match[3].str(), ".gguf)"));
    }
    const int parts = std::min(std::stoi(match[3]), kMaxParts);
    for (int part = 1; part <= parts; ++part) {
      std::array<char, 8> number{};
      std::snprintf(number.data(), number.size(), "%05d", part);
      files.push_back(absl::StrCat(match[1].str(), "-", number.data(), "-of-", match[3].str(), match[4].str()));
    }
  }
  for (const std::string& file : files) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(file, error)) {
      return absl::NotFoundError(absl::StrCat(file, ": no such model file"));
    }
  }
  if (files.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": a split model of no parts"));
  return files;
}

absl::StatusOr<std::string> ModelHash(const std::string& path) {
  absl::StatusOr<std::vector<std::string>> files = ModelFiles(path);
  if (!files.ok()) return files.status();
  const State state(XXH3_createState());
  if (state == nullptr) return absl::ResourceExhaustedError("no memory to hash the model file");
  XXH3_128bits_reset(state.get());
  for (const std::string& file : *files) {
    if (absl::Status status = AddFile(file, state.get()); !status.ok()) return status;
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16), absl::Hex(hash.low64, absl::kZeroPad16));
}

}  // namespace cofferdam::text
