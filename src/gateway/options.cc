#include "gateway/options.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"

namespace cofferdam::gateway {
namespace {

constexpr size_t kMaxKeyBytes = 512;
constexpr size_t kMaxWorkers = 256;
constexpr int kMaxThreads = 256;

}  // namespace

// Nothing but an IP address or this one name is ever listened on.
bool IsLoopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

absl::Status CheckAccess(const GatewayOptions& options) {
  if (!options.key_file.empty() && !options.api_keys.empty()) {
    return absl::InvalidArgumentError(
        "keys come from a key file (--keys) or are given as they are (--api-key, --api-key-file), not both");
  }
  if (IsOpen(options) && !options.allow_anyone && !IsLoopback(options.host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "without API keys the server listens on this machine alone, and ", options.host,
        " is reached by others. Make keys (cofferdam keys add --keys FILE --tenant NAME) and start with --keys FILE; or, "
        "if whoever reaches it may use it, say --allow-anyone"));
  }
  for (const std::string& key : options.api_keys) {
    if (key.empty() || key.size() > kMaxKeyBytes) {
      return absl::InvalidArgumentError(absl::StrCat("an API key must have 1 to ", kMaxKeyBytes, " bytes"));
    }
    // A header loses its spaces at both ends on the way: nobody could send such a key.
    if (absl::ascii_isspace(static_cast<unsigned char>(key.front())) ||
        absl::ascii_isspace(static_cast<unsigned char>(key.back()))) {
      return absl::InvalidArgumentError("an API key must not begin or end with a space");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const GatewayOptions& options) {
  if (options.decode_addresses.empty()) return absl::InvalidArgumentError("a gateway needs the address of a decode worker");
  if (options.decode_addresses.size() + options.prefill_addresses.size() > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxWorkers, " workers"));
  }
  for (const auto* addresses : {&options.decode_addresses, &options.prefill_addresses}) {
    for (const std::string& address : *addresses) {
      if (absl::Status status = CheckLocalAddress(address); !status.ok()) return status;
    }
  }
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat("threads must be from 1 to ", kMaxThreads));
  }
  if (absl::Status status = CheckAccess(options); !status.ok()) return status;
  if (options.max_connections == 0 || options.max_in_flight == 0 || options.max_queue == 0 || options.max_body_bytes == 0 ||
      options.max_header_bytes == 0) {
    return absl::InvalidArgumentError("a limit of 0 would refuse every request");
  }
  return absl::OkStatus();
}

}  // namespace cofferdam::gateway
