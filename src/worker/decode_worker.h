// The decode server: owns a request from admission to its last token.
#ifndef COFFERDAM_WORKER_DECODE_WORKER_H_
#define COFFERDAM_WORKER_DECODE_WORKER_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cofferdam.grpc.pb.h"
#include "handoff/decode_handoff.h"
#include "worker/engine_loop.h"
#include "worker/heartbeat.h"
#include "worker/prefill_call.h"
#include "worker/prefill_peer.h"
#include "worker/worker.h"

namespace cofferdam::worker {

class GenerateStream;
using RequestId = StrongId<struct RequestIdTag, uint64_t>;

// Everything that is not said to be thread-safe runs on the engine's thread.
class DecodeWorker final : public v1::Decode::CallbackService, public LoopClient {
 public:
  static std::unique_ptr<DecodeWorker> Create(std::unique_ptr<WorkerCore> core);
  // REQUIRES: the gRPC server that this service was registered with is shut down and gone.
  ~DecodeWorker() override;

  // gRPC's threads.
  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const v1::InfoRequest* request,
                                 v1::WorkerInfo* info) override;
  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(grpc::CallbackServerContext* context,
                                                        const v1::GenerateRequest* request) override;

  EngineLoop& loop() { return loop_; }  // thread-safe

  // Empty when a prefill worker can be used, or none is needed. Thread-safe.
  std::string WhyNotReady() const;

  // Posted by streams.
  void OnNew(std::shared_ptr<GenerateStream> stream, v1::GenerateRequest request);
  void OnCancelled(RequestId id);

  void OnEvents(const std::vector<engine::Event>& events) override;
  void OnTurn(Clock::time_point now) override;

 private:
  struct Request {
    RequestId id;
    std::shared_ptr<GenerateStream> stream;
    v1::Attempt attempt;  // the gateway's
    engine::SequenceSpec spec;
    std::string request_id, domain, cache_salt;
    uint32_t cached_tokens = 0;  // of its sequence
    bool finish_transfer = false;
    bool abandoned = false;  // its client is gone, and it runs to its first token only

    std::optional<SequenceId> sequence;
    std::shared_ptr<PrefillPeer> peer;
    std::shared_ptr<fabric::Reader> reader;
    uint64_t origin = 0;  // the peer's boot id
    std::shared_ptr<PrefillCall> call;
    std::unique_ptr<handoff::DecodeHandoff> handoff;
    handoff::AttemptId handoff_attempt;  // ours, for the prefill worker
    int handoffs = 0;
    bool retry = false;
    bool recompute = false;  // a handoff brought what was wrong
    uint32_t pages_verified = 0;
    uint32_t priority = 0;
    bool accepted = false;   // its client was told so
    uint32_t generated = 0;  // before it was preempted
    kv::CheckCounts checks;  // of the same
  };

  explicit DecodeWorker(std::unique_ptr<WorkerCore> core);

  // Admission and queue.
  absl::Status Judge(const engine::SequenceSpec& spec);
  bool NeedsHandoff(const engine::SequenceSpec& spec) const;
  // Given what the cache holds: whether the rest of the prompt is computed here.
  bool IsCheaperHere(const Request& request);
  void StartWaiting();
  void Begin(Request& request);
  void Wait(const Request& request) { queue_.emplace(request.spec.order, request.id); }
  void ComputeHere(Request& request);
  // It gave its pages back to older ones, and goes on when there is room again.
  void OnPreempted(Request& request, const engine::PreemptedEvent& event);
  // A client that has part of an answer gets the rest, whatever prefill workers do.
  bool MayTryAgain(const Request& request) const;
  void ForgetHandoff(Request& request);

  // Handoff (decode_transfers.cc).
  // The next one whose pool holds the request; the one that it was at before only for want of another. None when no such
  // worker is ready.
  std::shared_ptr<PrefillPeer> ChoosePeer(const Request& request);
  void OpenHandoff(Request& request);
  void OnPrefillEvent(RequestId id, uint64_t serial, const v1::PrefillEvent& event);
  void OnPrefillEnded(RequestId id, uint64_t serial, const absl::Status& status);
  // Carries actions out; may erase the request.
  void Act(RequestId id, handoff::DecodeActions actions);
  void IssueRead(Request& request, const handoff::IssueRead& read);
  // How one read went, told by the fabric's thread.
  struct ReadResult {
    uint32_t ordinal;
    kv::Arrived at;
    absl::StatusOr<kv::Arrival> arrival;
    Clock::duration transfer, verification;
#ifdef COFFERDAM_FAULTS
    std::optional<kv::FaultKind> fault{};
#endif
  };
  void OnRead(RequestId id, uint64_t serial, const ReadResult& read);
  void JudgeSeal(const Request& request, const ReadResult& read);
  void OfferWindow();
  // The pages are verified and hold other numbers than this prompt's: nothing ran on them, and another worker is asked.
  void OnWrongPages(Request& request, kv::CheckKind check, const absl::Status& status);
  void OnReleased(Request& request);

  static Ledger::Owner OwnerOf(const Request& request);
  // The page of a read or of a prompt whose check failed on the way: it retires, and another worker is asked.
  void RecordOnTheWay(const Request& request, kv::CheckKind kind, PageId page, Generation generation, const std::string& detail);
  void Accept(Request& request);
  void Finish(Request& request, const absl::Status& status);
  Request* Find(RequestId id);
  // None when the request is gone or is at another handoff.
  Request* FindHandoff(RequestId id, uint64_t serial);
  void Publish();
  void CountCalls(int change);  // thread-safe

  std::unique_ptr<WorkerCore> core_;
  handoff::TransferWindow all_peers_;
  std::vector<std::shared_ptr<PrefillPeer>> peers_;
  size_t next_peer_ = 0;
  std::map<RequestId, Request> requests_;
  std::map<SequenceId, RequestId> by_sequence_;
  std::set<std::pair<uint64_t, RequestId>> queue_;  // by their order: they wait for pages and hold nothing
  std::set<RequestId> transferring_;
  std::atomic<uint64_t> next_request_{1};
  uint64_t next_handoff_ = 1;
  Clock::time_point published_{};

  struct Counters {
    uint64_t requests = 0, cancelled = 0, local_prefills = 0;
    uint64_t handoffs = 0, handoffs_completed = 0, handoffs_failed = 0, handoff_retries = 0;
    uint64_t reads = 0, reads_failed = 0, late_reads = 0, read_bytes = 0, stale_messages = 0;
  } counters_;
  SecondsHistogram transfer_seconds_, verification_seconds_;
  Mutex calls_mutex_;
  CondVar calls_changed_;
  int live_calls_ CD_GUARDED_BY(calls_mutex_) = 0;
  EngineLoop loop_;
  kv::Zeroer zeroer_{[this] { loop_.Post([] {}); }};  // wakes a loop that waits for pages
  Heartbeats heartbeats_;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_DECODE_WORKER_H_
