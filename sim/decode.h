// A decode worker: what src/worker's DecodeWorker and PageFetcher do with gRPC and threads, here over the simulated network. The
// handoff's machine, the engine and the pool are those of production.
#ifndef COFFERDAM_SIM_DECODE_H_
#define COFFERDAM_SIM_DECODE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "handoff/decode_handoff.h"
#include "sim/network.h"
#include "sim/worker.h"

namespace cofferdam::sim {

using CallId = uint64_t;

// One attempt of a gateway.
struct Call {
  CallId id = 0;
  size_t gateway = 0;
  handoff::AttemptId attempt;
  uint32_t domain = 0;
  std::vector<TokenId> tokens;
  uint32_t resumed_tokens = 0;
  uint32_t max_output = 0;
  uint32_t priority = 0;
};

class Decode final : public Worker {
 public:
  Decode(World& world, size_t index);

  // Called on the loop.
  void OnCall(Call call);
  void OnCancelled(CallId id);
  void OnPrefillMessage(FetchId id, const ToDecode& message);
  void OnPrefillEnded(FetchId id, const absl::Status& status);

  // Off the loop.
  std::optional<FetchId> AnyFetchBut(FetchId fetch, uint64_t draw) const;
  void OnCopied(const ReadTarget& target);
  // Looks whether its peers are there, as the production server asks them now and then.
  void LookAtPeers();
  // The mistake of Fault::kSecondRead.
  void ReadAgain(Time issued_until);
  std::optional<std::pair<FetchId, StreamId>> LastFetchOf(CallId call) const;
  std::string LeftOverHere() const;
  uint64_t retries() const { return retries_; }

 protected:
  void OnEvents(const std::vector<engine::Event>& events) override;
  void OnTurn(Time now) override;
  void OnBeat() override;
  bool Waits() const override { return !requests_.empty(); }
  void Forget() override;

 private:
  struct Peer {
    std::unique_ptr<handoff::TransferWindow> window;
    std::shared_ptr<Fabric::Reader> reader;
    uint64_t boot_id = 0;
    bool ready = false;
  };
  struct Request {
    Call call;
    engine::SequenceSpec spec;
    std::optional<SequenceId> sequence;
    std::optional<SequenceId> held;  // Fault::kPinsHeldQueued
    std::optional<FetchId> fetch;
    std::optional<size_t> peer;
    uint32_t cached_tokens = 0, generated = 0;
    int handoffs = 0;
    bool accepted = false, retry = false, recompute = false, ended = false;
    handoff::AttemptId first_attempt{};
  };
  struct Fetch {
    CallId call = 0;
    SequenceId sequence;
    uint64_t peer = 0;
    std::shared_ptr<Fabric::Reader> reader;
    StreamId stream = 0;
    std::unique_ptr<handoff::DecodeHandoff> handoff;
    bool sequence_gone = false;
    std::map<uint32_t, std::pair<Time, handoff::IssueRead>> reads;  // out
  };

  // Requests (decode.cc).
  absl::Status Judge(const engine::SequenceSpec& spec);
  void StartWaiting();
  bool TryStart(Request& request);
  void HoldWhileQueued(Request& request);
  void Begin(Request& request);
  void ComputeHere(Request& request);
  void OpenHandoff(Request& request);
  std::optional<size_t> ChoosePeer(const Request& request);
  void Accept(Request& request);
  void Finish(Request& request, const absl::Status& status);
  void OnFetched(Request& request);
  void OnFetchFailed(Request& request, const handoff::Fail& fail, bool sequence_gone);
  void OnReleased(CallId id);
  bool MayTryAgain(const Request& request) const;
  void OnPreempted(Request& request, const engine::PreemptedEvent& event);
  void OnEvent(Request& request, const engine::Event& event);
  Request* FindRequest(CallId id);

  // Fetches (fetch.cc).
  void StartFetch(Request& request, size_t peer);
  Fetch* Find(FetchId id);
  void Act(FetchId id, handoff::DecodeActions actions);
  void IssueRead(FetchId id, Fetch& fetch, const handoff::IssueRead& read);
  void OnRead(FetchId id, uint32_t ordinal, const ReadTarget& target, const absl::StatusOr<kv::Arrival>& arrival);
  bool Adopt(FetchId id, const handoff::Adopt& adopt);
  void OnComplete(FetchId id);
  using Tell = std::function<void(handoff::DecodeHandoff&, handoff::DecodeActions&)>;
  void ActOnAll(const Tell& tell);

  std::unique_ptr<handoff::TransferWindow> all_peers_;
  std::vector<Peer> peers_;
  std::map<CallId, Request> requests_;
  std::set<std::pair<uint64_t, CallId>> queue_;
  std::map<SequenceId, CallId> by_sequence_;
  std::map<FetchId, Fetch> fetches_;
  FetchId next_fetch_ = 1;
  size_t next_peer_ = 0;
  uint64_t retries_ = 0;
};

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_DECODE_H_
