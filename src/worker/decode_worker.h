// The decode server: owns a request from admission to its last token.
#ifndef COFFERDAM_WORKER_DECODE_WORKER_H_
#define COFFERDAM_WORKER_DECODE_WORKER_H_

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cofferdam.grpc.pb.h"
#include "worker/engine_loop.h"
#include "worker/heartbeat.h"
#include "worker/page_fetcher.h"
#include "worker/page_finder.h"
#include "worker/page_server.h"
#include "worker/prefill_peer.h"
#include "worker/worker.h"

namespace cofferdam::worker {

class GenerateStream;
using RequestId = StrongId<struct RequestIdTag, uint64_t>;

// Everything that is not said to be thread-safe runs on the engine's thread.
class DecodeWorker final : public v1::Decode::CallbackService, public LoopClient {
 public:
  // Starts the engine's thread and, with a fabric address, serves the region. Errors: those of fabric::Serve.
  static absl::StatusOr<std::unique_ptr<DecodeWorker>> Create(std::unique_ptr<WorkerCore> core);
  // REQUIRES: the gRPC server that its services were registered with is shut down and gone.
  ~DecodeWorker() override;

  // gRPC's threads.
  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const v1::InfoRequest* request,
                                 v1::WorkerInfo* info) override;
  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(grpc::CallbackServerContext* context,
                                                        const v1::GenerateRequest* request) override;

  std::vector<grpc::Service*> services();
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
    uint32_t cached_tokens = 0;  // of its sequence: found in the prefix cache, or pulled
    bool finish_transfer = false;
    bool abandoned = false;  // its client is gone, and it runs to its first token only

    std::optional<SequenceId> sequence;
    std::optional<FetchId> fetch;       // under way, or failed and not quiet yet: the sequence stays
    std::shared_ptr<PrefillPeer> peer;  // of the last handoff
    int handoffs = 0;
    bool may_pull = true;
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
  void StartWaiting();
  void Begin(Request& request);
  void Wait(const Request& request) { queue_.emplace(request.spec.order, request.id); }
  void ComputeHere(Request& request);
  // It gave its pages back to older ones, and goes on when there is room again.
  void OnPreempted(Request& request, const engine::PreemptedEvent& event);
  // A client that has part of an answer gets the rest, whatever prefill workers do.
  bool MayTryAgain(const Request& request) const;

  // Where prompts are computed and pages come from (decode_fetches.cc).
  enum class Place : uint8_t { kPrefill, kHereAlone, kHereShort, kHereCheaper };
  uint64_t LocalTokens() const;
  bool NeedsHandoff(const engine::SequenceSpec& spec) const;
  bool PrefillPullsFromHere() const;
  // Given what is held here: who computes the rest of the prompt.
  // Of its prompt, that neither lie here nor can be copied: to be computed, by whomever.
  uint64_t MissingTokens(const Request& request) const;
  Place WhereToCompute(const Request& request) const;
  void PlacePrompt(Request& request);
  // Asks other workers for pages that are missing here; false when there is nothing to ask.
  bool LookElsewhere(Request& request);
  void OnFound(Request& request, const PageFinder::Best& best);
  // Fills in what is the same for all fetches of a request.
  void StartFetch(Request& request, FetchSpec spec);
  void OnFetched(Request& request, bool pull, uint32_t pages);
  void OnFetchFailed(Request& request, bool pull, const FetchFailure& failure);
  // The next one whose pool holds the request; the one that it was at before only for want of another. None when no such
  // worker is ready.
  std::shared_ptr<PrefillPeer> ChoosePeer(const Request& request);
  void OpenHandoff(Request& request);
  void OnReleased(Request& request);

  static Ledger::Owner OwnerOf(const Request& request);
  void Accept(Request& request);
  void Finish(Request& request, const absl::Status& status);
  Request* Find(RequestId id);
  void Publish();

  std::unique_ptr<WorkerCore> core_;
  std::vector<std::shared_ptr<PrefillPeer>> peers_, pull_from_;
  size_t next_peer_ = 0;
  std::map<RequestId, Request> requests_;
  std::map<SequenceId, RequestId> by_sequence_;
  std::set<std::pair<uint64_t, RequestId>> queue_;  // by their order: they wait for pages and hold nothing
  std::atomic<uint64_t> next_request_{1};
  Clock::time_point published_{};

  struct Counters {
    uint64_t requests = 0, cancelled = 0, local_prefills = 0, handoff_retries = 0;
    std::array<uint64_t, 4> places{};  // of prompts, by Place
  } counters_;
  std::unique_ptr<PageServer> server_;  // null: nobody reads from here
  EngineLoop loop_;
  kv::Zeroer zeroer_{[this] { loop_.Post([] {}); }};  // wakes a loop that waits for pages
  Heartbeats heartbeats_;
  PageFetcher fetcher_;
  PageFinder finder_;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_DECODE_WORKER_H_
