// `cofferdam` of a portable build: becomes the best of the binaries beside it that this processor runs.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "cli/isa.h"

namespace {

constexpr int kExitRefused = 78;  // as in cli/supervisor.h: another start can not help

int Launch(char** argv) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    std::fprintf(stderr, "cofferdam: /proc/self/exe can not be read (%s), so the binaries beside it are not found\n",
                 error.message().c_str());
    return kExitRefused;
  }
  const auto path_of = [&](std::string_view level) { return (self.parent_path() / "cofferdam-").string().append(level); };
  const char* wanted = std::getenv("COFFERDAM_ISA");
  const auto choice =
      cofferdam::cli::ChooseLevel(wanted == nullptr ? "" : wanted, cofferdam::cli::CpuRuns,
                                  [&](std::string_view level) { return access(path_of(level).c_str(), X_OK) == 0; });
  if (const auto* none = std::get_if<cofferdam::cli::NoLevel>(&choice)) {
    std::fprintf(stderr, "cofferdam: %s\n", none->reason.c_str());
    return kExitRefused;
  }
  const std::string binary = path_of(std::get<std::string_view>(choice));
  execv(binary.c_str(), argv);
  std::fprintf(stderr, "cofferdam: %s can not be started: %s\n", binary.c_str(), std::strerror(errno));
  return 1;
}

}  // namespace

int main(int, char** argv) {
  try {
    return Launch(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cofferdam: unexpected failure: %s\n", error.what());
    return 1;
  }
}
