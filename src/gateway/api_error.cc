#include "gateway/api_error.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace cofferdam::gateway {
namespace {

constexpr size_t kMaxMessageBytes = 2000;

std::string TypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string DefaultMessage(int status) {
  switch (status) {
    case 503:
      return "No worker is available at the moment. Try again later.";
    case 504:
      return "The request ran out of time.";
    case 429:
      return "The server is busy. Try again later.";
    default:
      return "The server had an error while it processed the request.";
  }
}

std::string DefaultCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kResourceExhausted:
      return std::string(error_code::kQueueFull);
    case absl::StatusCode::kUnavailable:
      return std::string(error_code::kNoWorker);
    case absl::StatusCode::kDeadlineExceeded:
      return "timeout";
    case absl::StatusCode::kDataLoss:
      return std::string(error_code::kIntegrity);
    case absl::StatusCode::kInvalidArgument:
      return {};
    default:
      return "internal_error";
  }
}

}  // namespace

ApiError InvalidRequest(std::string message, std::string param, std::string code) {
  ApiError error = HttpError(400, std::move(message), std::move(code));
  error.param = std::move(param);
  return error;
}

ApiError HttpError(int status, std::string message, std::string code) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  error.type = TypeOf(status);
  error.code = std::move(code);
  if (status == 429 || status == 503) error.retry_after_s = 1;
  return error;
}

ApiError NoWorker(std::string message) { return HttpError(503, std::move(message), std::string(error_code::kNoWorker)); }

ApiError FromStatus(const absl::Status& status) {
  const int http = HttpStatusOf(status.code());
  const std::optional<ErrorFacts> facts = FactsOf(status);
  const bool about_request = http == 400 || http == 429;
  std::string message = (facts.has_value() || about_request) && !status.message().empty()
                            ? std::string(status.message()).substr(0, kMaxMessageBytes)
                            : DefaultMessage(http);
  ApiError error = HttpError(http, std::move(message), DefaultCode(status.code()));
  if (!facts.has_value()) return error;
  if (!facts->code.empty()) error.code = facts->code;
  error.param = facts->param;
  error.requested = facts->requested;
  error.limit = facts->limit;
  if (facts->retry_after_s > 0) error.retry_after_s = facts->retry_after_s;
  return error;
}

ApiError FromGrpc(const grpc::Status& status) {
  absl::Status converted(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (converted.ok()) converted = absl::UnknownError("a worker's stream ended early");
  if (const auto facts = ParseFacts(status.error_details())) converted = WithFacts(std::move(converted), *facts);
  return FromStatus(converted);
}

std::string ErrorJson(const ApiError& error) {
  nlohmann::ordered_json body;
  body["message"] = error.message;
  body["type"] = error.type;
  body["param"] = nullptr;
  body["code"] = nullptr;
  if (!error.param.empty()) body["param"] = error.param;
  if (!error.code.empty()) body["code"] = error.code;
  if (error.limit > 0) {
    body["requested"] = error.requested;
    body["limit"] = error.limit;
  }
  nlohmann::ordered_json outer;
  outer["error"] = std::move(body);
  return outer.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace cofferdam::gateway
