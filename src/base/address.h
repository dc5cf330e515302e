// Where workers may listen and connect until transports are authenticated: Unix sockets and loopback.
#ifndef COFFERDAM_BASE_ADDRESS_H_
#define COFFERDAM_BASE_ADDRESS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace cofferdam {

// OK for "unix:PATH" (PATH at most 107 bytes), "127.0.0.1:PORT", "[::1]:PORT" and "localhost:PORT"; otherwise
// InvalidArgument that says what is allowed.
absl::Status CheckLocalAddress(std::string_view address);

// Makes room for a socket at `path`: removes one that an earlier process left behind, and nothing else. `type` is SOCK_STREAM
// or SOCK_SEQPACKET, as its server uses it. Errors: Unavailable when a process serves on it, or it is no socket.
absl::Status RemoveStaleSocket(const std::string& path, int type);

}  // namespace cofferdam

#endif  // COFFERDAM_BASE_ADDRESS_H_
