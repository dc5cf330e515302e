// Limits and habits of every gRPC connection between workers.
#ifndef COFFERDAM_WORKER_GRPC_LIMITS_H_
#define COFFERDAM_WORKER_GRPC_LIMITS_H_

#include <grpcpp/grpcpp.h>

namespace cofferdam::worker {

// A prompt of a million tokens is up to 5 MB on the wire, over gRPC's default of 4.
inline constexpr int kMaxMessageBytes = 64 << 20;

inline grpc::ChannelArguments ChannelLimits() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // A worker that was restarted is found again at once.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);  // how long an attempt may take, in truth
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_GRPC_LIMITS_H_
