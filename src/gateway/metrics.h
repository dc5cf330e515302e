// The gateway's own numbers, and those of its workers, as Prometheus text.
#ifndef COFFERDAM_GATEWAY_METRICS_H_
#define COFFERDAM_GATEWAY_METRICS_H_

#include <cofferdam.pb.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace cofferdam::gateway {

// A histogram of seconds. Thread-safe.
class Histogram {
 public:
  void Observe(double seconds);
  void Render(const std::string& name, const std::string& help, std::string& out) const;

 private:
  static constexpr std::array<double, 14> kBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
  mutable Mutex mutex_;
  std::array<uint64_t, kBounds.size() + 1> counts_ CD_GUARDED_BY(mutex_){};
  double sum_ CD_GUARDED_BY(mutex_) = 0;
};

// What /metrics shows of a worker.
struct WorkerMetrics {
  std::string role;
  std::string address;
  bool up = false;
  bool routable = false;
  uint64_t gateway_running = 0;  // requests that this gateway has there
  v1::WorkerInfo info;           // the last one that came
};

// Thread-safe. Label values come from fixed sets (routes, statuses, codes of refusals), never from a client's text.
class Metrics {
 public:
  void CountRequest(const std::string& route, int status);
  void CountRejection(const std::string& code);

  std::atomic<uint64_t> connections{0};  // open now
  std::atomic<uint64_t> running{0};      // requests that generate or wait now
  std::atomic<uint64_t> waiting{0};      // of these, not accepted by a worker yet
  std::atomic<uint64_t> connections_total{0};
  std::atomic<uint64_t> connections_refused_total{0};
  std::atomic<uint64_t> prompt_tokens_total{0};
  std::atomic<uint64_t> generated_tokens_total{0};
  std::atomic<uint64_t> disconnects_total{0};
  std::atomic<uint64_t> stale_messages_total{0};
  std::atomic<uint64_t> retries_total{0};
  std::atomic<uint64_t> resumed_total{0};  // of the retries, those with tokens already sent
  std::atomic<uint64_t> retries_refused_total{0};
  std::atomic<uint64_t> timeouts_total{0};
  std::atomic<uint64_t> pages_verified_total{0};
  Histogram time_to_first_token;
  Histogram end_to_end;

  std::string Render(const std::vector<WorkerMetrics>& workers) const;

 private:
  void RenderOwn(std::string& out) const;

  mutable Mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> requests_ CD_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> rejections_ CD_GUARDED_BY(mutex_);
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_METRICS_H_
