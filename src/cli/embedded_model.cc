#include "cli/embedded_model.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"

// The bytes are put into the read-only data of the binary by the assembler.
__asm__(
    ".section .rodata\n"
    ".balign 64\n"
    ".global cofferdam_embedded_model\n"
    ".global cofferdam_embedded_model_end\n"
    "cofferdam_embedded_model:\n"
    ".incbin \"" COFFERDAM_EMBEDDED_MODEL
    "\"\n"
    "cofferdam_embedded_model_end:\n"
    ".byte 0\n"
    ".text\n");
extern "C" const char cofferdam_embedded_model[];
extern "C" const char cofferdam_embedded_model_end[];

namespace cofferdam::cli {
namespace {

std::span<const char> EmbeddedBytes() { return {cofferdam_embedded_model, cofferdam_embedded_model_end}; }

std::filesystem::path CacheFolder() {
  if (const char* folder = std::getenv("COFFERDAM_CACHE"); folder != nullptr && *folder != '\0') return folder;
  if (const char* folder = std::getenv("XDG_CACHE_HOME"); folder != nullptr && *folder != '\0')
    return std::filesystem::path(folder) / "cofferdam";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::filesystem::path(home) / ".cache/cofferdam";
  return std::filesystem::temp_directory_path() / absl::StrCat("cofferdam-", getuid());
}

bool HoldsTheBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::span<const char> bytes = EmbeddedBytes();
  std::vector<char> found(bytes.size() + 1);
  file.read(found.data(), static_cast<std::streamsize>(found.size()));
  return file.gcount() == static_cast<std::streamsize>(bytes.size()) && std::equal(bytes.begin(), bytes.end(), found.begin());
}

}  // namespace

absl::StatusOr<std::string> EmbeddedModelFile() {
  const std::filesystem::path folder = CacheFolder(), path = folder / absl::StrCat(kEmbeddedModelName, ".gguf");
  if (HoldsTheBytes(path)) return path.string();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  // Written under another name first, so that no process ever maps half a file.
  const std::filesystem::path partial = folder / absl::StrCat(kEmbeddedModelName, ".", getpid(), ".partial");
  {
    std::ofstream file(partial, std::ios::binary | std::ios::trunc);
    file.write(EmbeddedBytes().data(), static_cast<std::streamsize>(EmbeddedBytes().size()));
    file.close();
    if (!file) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) std::filesystem::rename(partial, path, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    return absl::FailedPreconditionError(absl::StrCat("the embedded model could not be written to ", path.string(),
                                                      "; set COFFERDAM_CACHE to a folder that can be written"));
  }
  return path.string();
}

}  // namespace cofferdam::cli
