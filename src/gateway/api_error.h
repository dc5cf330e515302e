// Errors as clients see them: an HTTP status and OpenAI's JSON shape.
#ifndef COFFERDAM_GATEWAY_API_ERROR_H_
#define COFFERDAM_GATEWAY_API_ERROR_H_

#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace cofferdam::gateway {

struct ApiError {
  int status = 500;
  std::string message;
  std::string type;   // "invalid_request_error", "rate_limit_error", "server_error", ...
  std::string param;  // empty: null
  std::string code;   // empty: null
  uint64_t requested = 0;
  uint64_t limit = 0;          // 0: no numbers
  uint32_t retry_after_s = 0;  // 0: no Retry-After
};

// 400 with the field at fault.
ApiError InvalidRequest(std::string message, std::string param = {}, std::string code = {});
// Any other status, with the type that belongs to it.
ApiError HttpError(int status, std::string message, std::string code = {});
// 503 no_worker_available with Retry-After.
ApiError NoWorker(std::string message);

// The code, param and numbers of a worker's or our own refusal pass unchanged. Messages without facts pass only where
// they speak of the request; what an internal failure says stays in our log.
ApiError FromStatus(const absl::Status& status);
// The same for a gRPC status, whose error details carry the facts.
ApiError FromGrpc(const grpc::Status& status);

// {"error":{"message","type","param","code"}}, with "requested" and "limit" when there are numbers.
std::string ErrorJson(const ApiError& error);

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_API_ERROR_H_
