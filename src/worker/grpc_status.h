// Statuses across gRPC: the code and the message go as they are, the facts of base/error.h as error details.
#ifndef COFFERDAM_WORKER_GRPC_STATUS_H_
#define COFFERDAM_WORKER_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace cofferdam::worker {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_GRPC_STATUS_H_
