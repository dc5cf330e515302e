// The folder of a tenure log: which files are in it, and which go. Files are named ROLE-BOOT-NUMBER.jsonl.
#ifndef COFFERDAM_TENURE_FOLDER_H_
#define COFFERDAM_TENURE_FOLDER_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tenure/record.h"

namespace cofferdam::tenure {

// Where logs lie unless an option names another folder: `$XDG_STATE_HOME/cofferdam`, else `$HOME/.local/state/cofferdam`.
// Errors: FailedPrecondition when neither is set to an absolute path.
absl::StatusOr<std::string> DefaultFolder();
// The same for given values of the two variables; null: not set.
absl::StatusOr<std::string> DefaultFolder(const char* state_home, const char* home);

struct FileId {
  Role role = Role::kDecode;
  BootId boot{};
  uint32_t number = 0;  // counts from 1 within a boot

  friend auto operator<=>(const FileId&, const FileId&) = default;
};

std::string FileName(const FileId& file);
// Whether `name` is the name of a log file.
bool ParseFileName(std::string_view name, FileId& file);

// The log files of a folder, in the order of their ids. Other files are passed over. Errors: NotFound when there is no such
// folder, Unavailable when it cannot be read.
absl::StatusOr<std::vector<FileId>> ListFiles(const std::string& folder);

// Makes the folder, and those above it, with mode 0700; one that is there stays as it is. Errors: Unavailable.
absl::Status MakeFolder(const std::string& folder);

struct Retention {
  size_t max_files = 64;
  std::chrono::seconds max_age = std::chrono::days(30);
};

// Removes the oldest files of `current`'s role, of whichever boot, until both limits hold. Never removes `current`, nor a file
// that a living process writes to (they are locked). Returns how many files went.
size_t RemoveOldFiles(const std::string& folder, const FileId& current, const Retention& retention, Micros now);

}  // namespace cofferdam::tenure

#endif  // COFFERDAM_TENURE_FOLDER_H_
