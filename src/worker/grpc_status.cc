#include "worker/grpc_status.h"

#include <string>

#include "base/error.h"

namespace cofferdam::worker {

// absl's codes are gRPC's by definition, number for number.
grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto facts = FactsOf(status);
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
          facts.has_value() ? SerializeFacts(*facts) : std::string()};
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (const auto facts = ParseFacts(status.error_details()); facts.has_value()) result = WithFacts(std::move(result), *facts);
  return result;
}

}  // namespace cofferdam::worker
