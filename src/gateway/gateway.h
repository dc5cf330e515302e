// The gateway: an OpenAI-compatible HTTP server in front of decode and prefill workers.
#ifndef COFFERDAM_GATEWAY_GATEWAY_H_
#define COFFERDAM_GATEWAY_GATEWAY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "gateway/options.h"

namespace cofferdam::gateway {

// Thread-safe: Run on one thread, port and Stop on any.
class Gateway {
 public:
  // Reads the vocabulary, hashes the model file, starts to ask the workers, and listens: a client can connect from here
  // on, and is served once Run runs. Workers need not be there yet. Raises the soft limit of open files to the hard one.
  // Errors: INVALID_ARGUMENT (an option, a file that is no model), NOT_FOUND (no such file), UNAVAILABLE (the port).
  static absl::StatusOr<std::unique_ptr<Gateway>> Create(GatewayOptions options);
  // REQUIRES: Run is not running.
  ~Gateway();
  Gateway(const Gateway&) = delete;
  Gateway& operator=(const Gateway&) = delete;

  uint16_t port() const;
  // Serves until Stop. To be called once.
  void Run();
  // Ends Run: no new connections, idle ones closed, running requests given `drain_timeout`. Idempotent; not for use in a
  // signal handler.
  void Stop();

 private:
  class Impl;
  explicit Gateway(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_GATEWAY_H_
