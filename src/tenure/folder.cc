#include "tenure/folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cofferdam::tenure {
namespace {

constexpr std::string_view kSuffix = ".jsonl";
constexpr size_t kMaxListed = 1 << 20;  // files; more than any retention allows

struct Aged {
  int64_t modified_ns;
  FileId file;

  friend auto operator<=>(const Aged&, const Aged&) = default;
};

std::string PathOf(const std::string& folder, const FileId& file) { return absl::StrCat(folder, "/", FileName(file)); }

// Unless a living process writes to it.
bool Remove(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  const bool removed = flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(path.c_str()) == 0;
  close(fd);
  return removed;
}

}  // namespace

absl::StatusOr<std::string> DefaultFolder() { return DefaultFolder(std::getenv("XDG_STATE_HOME"), std::getenv("HOME")); }

absl::StatusOr<std::string> DefaultFolder(const char* state_home, const char* home) {
  // What is not absolute is ignored, as the XDG specification asks.
  if (state_home != nullptr && state_home[0] == '/') return absl::StrCat(state_home, "/cofferdam");
  if (home != nullptr && home[0] == '/') return absl::StrCat(home, "/.local/state/cofferdam");
  return absl::FailedPreconditionError("neither XDG_STATE_HOME nor HOME is set: name the folder of the tenure log");
}

std::string FileName(const FileId& file) {
  const std::string_view role = Name(file.role);
  return absl::StrFormat("%s-%s-%06d.jsonl", absl::string_view(role.data(), role.size()), Hex(file.boot), file.number);
}

bool ParseFileName(std::string_view name, FileId& file) {
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    const std::string start = absl::StrCat(std::string(Name(role)), "-");
    if (!name.starts_with(start) || !name.ends_with(kSuffix)) continue;
    const size_t digits_at = start.size() + 17;
    if (name.size() < digits_at + 6 + kSuffix.size() || name[digits_at - 1] != '-') return false;
    const std::string_view digits = name.substr(digits_at, name.size() - digits_at - kSuffix.size());
    if (!std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; })) return false;
    file.role = role;
    // The last: a file has one name, so that what is listed is what is opened and removed.
    return FromHex(name.substr(start.size(), 16), file.boot) &&
           absl::SimpleAtoi(absl::string_view(digits.data(), digits.size()), &file.number) && FileName(file) == name;
  }
  return false;
}

absl::StatusOr<std::vector<FileId>> ListFiles(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory)
    return absl::NotFoundError(absl::StrCat("there is no tenure log: no folder ", folder));
  if (error) return absl::UnavailableError(absl::StrCat("the folder ", folder, " cannot be read: ", error.message()));
  std::vector<FileId> files;
  while (entries != std::filesystem::directory_iterator() && files.size() < kMaxListed) {
    FileId file;
    if (ParseFileName(entries->path().filename().string(), file)) files.push_back(file);
    entries.increment(error);
    if (error) return absl::UnavailableError(absl::StrCat("the folder ", folder, " cannot be read: ", error.message()));
  }
  std::ranges::sort(files);
  return files;
}

absl::Status MakeFolder(const std::string& folder) {
  for (size_t end = folder.find('/', 1); end != std::string::npos; end = folder.find('/', end + 1)) {
    mkdir(folder.substr(0, end).c_str(), 0700);  // what is wrong shows at the last one
  }
  struct stat found {};
  if (mkdir(folder.c_str(), 0700) == 0 || (errno == EEXIST && stat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode))) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("the folder ", folder, " cannot be made: ", std::error_code(errno, std::generic_category()).message()));
}

size_t RemoveOldFiles(const std::string& folder, const FileId& current, const Retention& retention, Micros now) {
  const auto files = ListFiles(folder);
  if (!files.ok()) return 0;
  std::vector<Aged> others;
  for (const FileId& file : *files) {
    struct stat found {};
    if (file.role != current.role || file == current || lstat(PathOf(folder, file).c_str(), &found) != 0) continue;
    others.push_back({int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec, file});
  }
  std::ranges::sort(others);
  const int64_t oldest_ns = (now - std::chrono::microseconds(retention.max_age).count()) * 1000;
  size_t removed = 0;
  for (const auto& [modified_ns, file] : others) {
    const bool too_many = others.size() - removed + 1 > retention.max_files;
    if (!too_many && modified_ns >= oldest_ns) break;
    removed += Remove(PathOf(folder, file)) ? 1 : 0;
  }
  return removed;
}

}  // namespace cofferdam::tenure
