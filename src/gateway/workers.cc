#include "gateway/workers.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"

namespace cofferdam::gateway {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;  // a million tokens are at most 5 MiB
constexpr int kStreamWindowBytes = 64 << 10;
constexpr int kFailuresUntilUnroutable = 2;
constexpr std::chrono::seconds kStartUp{5};  // until then it is no news that a worker is not there yet

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);  // how long an attempt may take, in truth
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // ours know of attempts, gRPC's own do not
  // What HTTP/2 buffers for a stream whose client reads slowly: a fixed window, not one that grows to megabytes.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

Worker::Worker(Role role, std::string address) : role_(role), address_(std::move(address)) {
  const std::shared_ptr<grpc::Channel> channel = OpenChannel(address_);
  if (role_ == Role::kDecode) {
    decode_ = v1::Decode::NewStub(channel);
  } else {
    prefill_ = v1::Prefill::NewStub(channel);
  }
}

grpc::Status Worker::AskInfo(grpc::ClientContext& context, v1::WorkerInfo* info) const {
  return role_ == Role::kDecode ? decode_->Info(&context, v1::InfoRequest(), info)
                                : prefill_->Info(&context, v1::InfoRequest(), info);
}

Workers::Workers(const GatewayOptions& options, std::string model_hash)
    : model_hash_(std::move(model_hash)),
      interval_(options.poll_interval),
      timeout_(options.poll_timeout),
      silence_(options.silence_timeout) {
  const MutexLock lock(mutex_);
  for (const std::string& address : options.decode_addresses) {
    slots_.emplace_back().worker = std::make_shared<Worker>(Worker::Role::kDecode, address);
  }
  for (const std::string& address : options.prefill_addresses) {
    slots_.emplace_back().worker = std::make_shared<Worker>(Worker::Role::kPrefill, address);
  }
  polls_.resize(slots_.size(), nullptr);
  Judge();
}

Workers::~Workers() { Stop(); }

void Workers::Start() {
  const MutexLock lock(mutex_);
  CD_CHECK(threads_.empty(), "Start is called once");
  for (size_t i = 0; i < slots_.size(); ++i) threads_.emplace_back([this, i] { Poll(i); });
}

void Workers::Stop() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    for (grpc::ClientContext* context : polls_) {
      if (context != nullptr) context->TryCancel();
    }
  }
  stopped_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Workers::Poll(size_t index) {
  while (PollOnce(index)) {
    const MutexLock lock(mutex_);
    if (!stop_) stopped_.WaitFor(mutex_, interval_);
    if (stop_) return;
  }
}

bool Workers::PollOnce(size_t index) {
  std::shared_ptr<Worker> worker;
  grpc::ClientContext context;
  const auto started = std::chrono::steady_clock::now();
  context.set_deadline(std::chrono::system_clock::now() + timeout_);
  {
    const MutexLock lock(mutex_);
    if (stop_) return false;
    const Slot& slot = slots_[index];
    worker = slot.worker;
    polls_[index] = &context;
    // A connection comes up only while a call waits for it; a worker that was up and is gone must be seen at once.
    context.set_wait_for_ready(!slot.known || slot.failures >= kFailuresUntilUnroutable);
  }
  v1::WorkerInfo info;
  const grpc::Status status = worker->AskInfo(context, &info);
  const auto took = std::chrono::steady_clock::now() - started;
  const MutexLock lock(mutex_);
  polls_[index] = nullptr;
  if (stop_) return false;
  Slot& slot = slots_[index];
  // Whose own clock shows a stall must not judge others by it.
  if (!status.ok() && took > 2 * timeout_) return true;
  // Nor is a worker gone whose Info is late while its streams bring events.
  const bool busy = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && worker->heard() > started;
  if (busy) return true;
  if (status.ok()) worker->Heard();
  slot.up = status.ok();
  slot.failures = status.ok() ? 0 : slot.failures + 1;
  if (status.ok()) {
    slot.info = std::move(info);
    slot.known = true;
  }
  worker->set_silent(!status.ok() && std::chrono::steady_clock::now() - worker->heard() > silence_);
  Judge();
  return true;
}

std::string Workers::ProblemOf(const Slot& slot) const {
  if (!slot.known || slot.failures >= kFailuresUntilUnroutable) return "does not answer";
  if (slot.info.role() != slot.worker->role_name()) return absl::StrCat("says it is a '", slot.info.role(), "' worker");
  if (slot.info.model_hash() != model_hash_) {
    return absl::StrCat("serves another model file (", slot.info.model_hash(), ", here ", model_hash_, ")");
  }
  if (!slot.info.ready()) return absl::StrCat("is not ready: ", slot.info.not_ready_reason());
  if (slot.info.context_tokens() == 0) return "serves no context";
  return {};
}

void Workers::Judge() {
  auto fleet = std::make_shared<Fleet>();
  std::vector<const Slot*> prefill;
  bool has_prefill = false;
  for (Slot& slot : slots_) {
    slot.problem = ProblemOf(slot);
    if (slot.worker->role() != Worker::Role::kPrefill) continue;
    has_prefill = true;
    if (slot.problem.empty()) prefill.push_back(&slot);
  }
  const auto limit_by = [&fleet](const Slot& slot) {
    const uint64_t context = slot.info.context_tokens();
    if (fleet->context_tokens != 0 && context >= fleet->context_tokens) return;
    fleet->context_tokens = context;
    fleet->context_role = absl::StrCat(slot.worker->role_name(), " worker");
  };
  for (Slot& slot : slots_) {
    if (slot.worker->role() != Worker::Role::kDecode || !slot.problem.empty()) continue;
    bool partner = !has_prefill;
    for (const Slot* other : prefill) {
      if (other->info.layout().layout_id() != slot.info.layout().layout_id()) {
        slot.problem = absl::StrCat("has the layout '", slot.info.layout().description(), "', but ", other->worker->address(),
                                    " has '", other->info.layout().description(), "'");
        continue;
      }
      partner = true;
      limit_by(*other);
    }
    if (partner) {
      limit_by(slot);
      fleet->routable.push_back(slot.worker);
    } else if (slot.problem.empty()) {
      slot.problem = "has no prefill worker";
    }
  }
  for (const Slot& slot : slots_) {
    if (slot.problem.empty()) continue;
    fleet->problems.push_back(absl::StrCat(slot.worker->role_name(), " worker ", slot.worker->address(), " ", slot.problem));
  }
  fleet->ready = !fleet->routable.empty();
  Log(*fleet);
  fleet_ = std::move(fleet);
}

void Workers::Log(const Fleet& fleet) {
  // While workers are starting nothing is wrong yet; what still is after that is said.
  const bool starting = !logged_.has_value() && std::chrono::steady_clock::now() - created_ < kStartUp;
  if (logged_ == fleet.problems || (starting && !fleet.problems.empty())) return;
  for (const std::string& problem : fleet.problems) log::warn("{}", problem);
  if (fleet.problems.empty()) log::info("all workers are ready; context {} tokens", fleet.context_tokens);
  logged_ = fleet.problems;
}

std::shared_ptr<const Fleet> Workers::fleet() const {
  const MutexLock lock(mutex_);
  return fleet_;
}

Lease Workers::Pick(const Wish& wish) {
  const std::shared_ptr<const Fleet> now = fleet();
  const size_t count = now->routable.size();
  const size_t start = turn_.fetch_add(1, std::memory_order_relaxed);
  std::shared_ptr<Worker> best;
  std::shared_ptr<Worker> fallback;
  for (size_t i = 0; i < count; ++i) {
    const std::shared_ptr<Worker>& worker = now->routable[(start + i) % count];
    if (worker.get() == wish.avoid) {
      fallback = worker;
    } else if (worker.get() == wish.home) {
      return Lease(worker);
    } else if (best == nullptr || worker->running() < best->running()) {
      best = worker;
    }
  }
  if (best == nullptr) best = std::move(fallback);
  return best == nullptr ? Lease() : Lease(std::move(best));
}

bool Workers::HasOther(const Worker* worker) const {
  const std::shared_ptr<const Fleet> now = fleet();
  return std::any_of(now->routable.begin(), now->routable.end(), [worker](const auto& other) { return other.get() != worker; });
}

std::vector<WorkerMetrics> Workers::Report() const {
  const MutexLock lock(mutex_);
  std::vector<WorkerMetrics> report;
  for (const Slot& slot : slots_) {
    WorkerMetrics& worker = report.emplace_back();
    worker.role = slot.worker->role_name();
    worker.address = slot.worker->address();
    worker.up = slot.up;
    worker.routable =
        slot.problem.empty() || std::find(fleet_->routable.begin(), fleet_->routable.end(), slot.worker) != fleet_->routable.end();
    worker.gateway_running = slot.worker->running();
    worker.info = slot.info;
  }
  return report;
}

}  // namespace cofferdam::gateway
