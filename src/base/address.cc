#include "base/address.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace cofferdam {

absl::Status CheckLocalAddress(std::string_view text) {
  constexpr size_t kMaxSocketPath = 107;  // sun_path of unix(7), less its final zero
  absl::string_view address(text.data(), text.size());
  if (absl::ConsumePrefix(&address, "unix:")) {
    if (!address.empty() && address.size() <= kMaxSocketPath) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the socket path in '", absl::string_view(text.data(), text.size()),
                                                   "' must have 1 to ", kMaxSocketPath, " bytes, and has ", address.size()));
  }
  for (const char* host : {"127.0.0.1:", "[::1]:", "localhost:"}) {
    int port = 0;
    absl::string_view rest = address;
    if (absl::ConsumePrefix(&rest, host) && absl::SimpleAtoi(rest, &port) && port >= 1 && port <= 65535) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("'", absl::string_view(text.data(), text.size()),
                                                 "' is not allowed: until worker connections are encrypted, workers listen on "
                                                 "'unix:PATH' or on loopback ('127.0.0.1:PORT') alone"));
}

}  // namespace cofferdam
