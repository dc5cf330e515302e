// The workers that a gateway knows: what they say of themselves, and which of them get requests.
#ifndef COFFERDAM_GATEWAY_WORKERS_H_
#define COFFERDAM_GATEWAY_WORKERS_H_

#include <cofferdam.grpc.pb.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "gateway/metrics.h"
#include "gateway/options.h"

namespace cofferdam::gateway {

// One worker. Thread-safe; shared by the requests that run there.
class Worker {
 public:
  enum class Role { kDecode, kPrefill };
  Worker(Role role, std::string address);

  Role role() const { return role_; }
  const char* role_name() const { return role_ == Role::kDecode ? "decode" : "prefill"; }
  const std::string& address() const { return address_; }
  // REQUIRES: role() == kDecode.
  v1::Decode::Stub& decode() const { return *decode_; }
  // Asks for Info once, and blocks for at most `timeout`.
  grpc::Status AskInfo(grpc::ClientContext& context, v1::WorkerInfo* info) const;

  // It has not been heard of for so long that streams from it are given up.
  bool silent() const { return silent_; }
  void set_silent(bool silent) { silent_ = silent; }
  // A sign of life: an answer to Info, or an event of any stream.
  void Heard() { heard_ = std::chrono::steady_clock::now(); }
  std::chrono::steady_clock::time_point heard() const { return heard_; }
  uint64_t running() const { return running_; }

 private:
  friend class Lease;
  const Role role_;
  const std::string address_;
  std::unique_ptr<v1::Decode::Stub> decode_;
  std::unique_ptr<v1::Prefill::Stub> prefill_;
  std::atomic<bool> silent_{false};
  std::atomic<std::chrono::steady_clock::time_point> heard_{std::chrono::steady_clock::now()};
  std::atomic<uint64_t> running_{0};
};

// A request's place at a worker: counted for routing as long as it lives. Move-only.
class Lease {
 public:
  Lease() = default;
  explicit Lease(std::shared_ptr<Worker> worker) : worker_(std::move(worker)) { ++worker_->running_; }
  ~Lease() { Release(); }
  Lease(Lease&& other) noexcept : worker_(std::move(other.worker_)) {}
  Lease& operator=(Lease&& other) noexcept {
    if (this != &other) {
      Release();
      worker_ = std::move(other.worker_);
    }
    return *this;
  }
  explicit operator bool() const { return worker_ != nullptr; }
  Worker* operator->() const { return worker_.get(); }
  const Worker* get() const { return worker_.get(); }

 private:
  void Release() {
    if (worker_ != nullptr) --worker_->running_;
    worker_.reset();
  }
  std::shared_ptr<Worker> worker_;
};

// What all of them together can do now. A value; it does not change.
struct Fleet {
  std::vector<std::shared_ptr<Worker>> routable;  // decode workers that get requests
  bool ready = false;
  std::vector<std::string> problems;  // one line a worker that is not in use, for /health
  uint64_t context_tokens = 0;        // the smallest over the workers in use; 0 when there is none
  std::string context_role;           // whose limit that is
};

// Asks every worker for Info, each on a thread of its own, and keeps the Fleet. Thread-safe.
class Workers {
 public:
  Workers(const GatewayOptions& options, std::string model_hash);
  ~Workers();  // stops
  void Start();
  // Ends the polling; blocks until it has. Idempotent.
  void Stop();

  std::shared_ptr<const Fleet> fleet() const;
  struct Wish {
    const Worker* avoid = nullptr;  // never while there is another
    const Worker* home = nullptr;   // before all others, whatever its load, unless it is `avoid`
  };
  // The least loaded routable decode worker, in turn among equals, as far as `wish` leaves a choice. Empty when none.
  Lease Pick(const Wish& wish);
  // Whether a routable worker other than `worker` exists.
  bool HasOther(const Worker* worker) const;
  std::vector<WorkerMetrics> Report() const;

 private:
  // What is known of one worker.
  struct Slot {
    std::shared_ptr<Worker> worker;
    v1::WorkerInfo info;
    bool known = false;  // an Info has come
    bool up = false;     // the last one came
    int failures = 0;    // in a row
    std::string problem;
  };

  void Poll(size_t index);
  // Returns false when the answer says nothing because this process itself was late.
  bool PollOnce(size_t index);
  std::string ProblemOf(const Slot& slot) const CD_REQUIRES(mutex_);
  void Judge() CD_REQUIRES(mutex_);
  // Says what has changed since it last said something.
  void Log(const Fleet& fleet) CD_REQUIRES(mutex_);

  const std::string model_hash_;
  const std::chrono::milliseconds interval_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::milliseconds silence_;
  const std::chrono::steady_clock::time_point created_ = std::chrono::steady_clock::now();
  mutable Mutex mutex_;
  CondVar stopped_;
  bool stop_ CD_GUARDED_BY(mutex_) = false;
  std::vector<Slot> slots_ CD_GUARDED_BY(mutex_);
  std::vector<grpc::ClientContext*> polls_ CD_GUARDED_BY(mutex_);  // in progress, to be cancelled by Stop
  std::shared_ptr<const Fleet> fleet_ CD_GUARDED_BY(mutex_);
  std::optional<std::vector<std::string>> logged_ CD_GUARDED_BY(mutex_);  // the problems that the log tells of; none: nothing yet
  std::atomic<size_t> turn_{0};
  std::vector<std::thread> threads_;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_WORKERS_H_
