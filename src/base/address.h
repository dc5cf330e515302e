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

}  // namespace cofferdam

#endif  // COFFERDAM_BASE_ADDRESS_H_
