#include "base/address.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace cofferdam {

absl::Status CheckLocalAddress(std::string_view address) {
  constexpr size_t kMaxSocketPath = 107;  // sun_path of unix(7), less its final zero
  const absl::string_view whole(address.data(), address.size());
  absl::string_view path = whole;
  if (absl::ConsumePrefix(&path, "unix:")) {
    if (!path.empty() && path.size() <= kMaxSocketPath) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the socket path in '", whole, "' must have 1 to ", kMaxSocketPath, " bytes, and has ", path.size()));
  }
  for (const char* host : {"127.0.0.1:", "[::1]:", "localhost:"}) {
    int port = 0;
    absl::string_view rest = whole;
    if (absl::ConsumePrefix(&rest, host) && absl::SimpleAtoi(rest, &port) && port >= 1 && port <= 65535) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("'", whole,
                                                 "' is not allowed: until worker connections are encrypted, workers listen on "
                                                 "'unix:PATH' or on loopback ('127.0.0.1:PORT') alone"));
}

absl::Status RemoveStaleSocket(const std::string& path, int type) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return absl::OkStatus();
  if (!S_ISSOCK(status.st_mode))
    return absl::UnavailableError(absl::StrCat("socket ", path, ": something else than a socket is there"));
  const int probe = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return absl::UnavailableError(absl::StrCat("socket: ", std::strerror(errno)));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const bool refused = connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 && errno == ECONNREFUSED;
  close(probe);
  if (!refused) return absl::UnavailableError(absl::StrCat("socket ", path, ": another process serves on it"));
  unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace cofferdam
