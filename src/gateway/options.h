// What a gateway is told at start. Every bound on what clients can make it hold stands here.
#ifndef COFFERDAM_GATEWAY_OPTIONS_H_
#define COFFERDAM_GATEWAY_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace cofferdam::gateway {

inline constexpr uint32_t kMaxPriority = 60;     // of a request, what workers take
inline constexpr uint32_t kMaxTopLogprobs = 20;  // the same

struct GatewayOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one, see Gateway::port()
  std::string model_path;
  std::vector<std::string> served_model_names;  // empty: the file's stem
  // gRPC targets, as CheckLocalAddress of base/address.h allows them: connections to workers are
  // neither encrypted nor authenticated. No prefill worker means that decode workers prefill by themselves.
  std::vector<std::string> decode_addresses;
  std::vector<std::string> prefill_addresses;
  // Who is let in: whoever is in the key file (gateway/key_file.h), which is watched and read again when it changes; or
  // holders of the keys, each a tenant of its own. Neither: everybody, into the one isolation domain "default".
  std::string key_file;
  std::vector<std::string> api_keys;
  bool allow_anyone = false;  // without keys on an address that others reach
  bool finish_transfer_on_disconnect = false;
  bool hide_cached_tokens = false;  // usage does not say how many prompt tokens were found in the prefix cache
  int threads = 1;

  size_t max_connections = 4096;
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = size_t{16} << 20;
  size_t max_total_body_bytes = size_t{1} << 30;  // of all requests that are being read or parsed
  size_t max_in_flight = 4096;                    // generating or waiting
  size_t max_queue = 1024;                        // of these, not accepted by a worker yet
  size_t max_pipelined_bytes = 64 << 10;          // kept of a client that sends ahead while it is answered
  int max_retries = 2;                            // of one request

  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{30'000};
  std::chrono::milliseconds idle_timeout{60'000};
  std::chrono::milliseconds write_timeout{30'000};       // for a client that reads nothing
  std::chrono::milliseconds request_timeout{3'600'000};  // the deadline that workers get
  std::chrono::milliseconds drain_timeout{5'000};        // for running requests after Stop
  std::chrono::milliseconds poll_interval{500};          // of every worker's Info
  std::chrono::milliseconds poll_timeout{2'000};
  std::chrono::milliseconds key_file_interval{1'000};  // between two looks at the key file
  // A worker of which nothing at all was heard for so long, neither Info nor an event of a stream, is given up, and its
  // streams with it. Long enough that a busy worker whose Info is late is not taken for a dead one.
  std::chrono::milliseconds silence_timeout{10'000};
};

// Whether everybody who reaches the address is let in.
inline bool IsOpen(const GatewayOptions& options) { return options.key_file.empty() && options.api_keys.empty(); }

// Whether only processes of this machine reach the address.
bool IsLoopback(const std::string& host);

// The part of CheckOptions that is about who is let in from where. Errors: INVALID_ARGUMENT, naming the option.
absl::Status CheckAccess(const GatewayOptions& options);

// Errors: INVALID_ARGUMENT, naming the option.
absl::Status CheckOptions(const GatewayOptions& options);

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_OPTIONS_H_
