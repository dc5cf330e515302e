// A gateway and its clients: what src/gateway's Generation does with one request, and what its client must get.
#ifndef COFFERDAM_SIM_GATEWAY_H_
#define COFFERDAM_SIM_GATEWAY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "sim/clock.h"
#include "sim/content.h"
#include "sim/decode.h"
#include "sim/scenario.h"

namespace cofferdam::sim {

class World;

class Gateway {
 public:
  Gateway(World& world, size_t index) : world_(world), index_(index) {}

  void OnRequest(const Input& input);
  // What comes over a call, of whatever attempt.
  void OnAccepted(CallId id, const handoff::AttemptId& attempt);
  void OnToken(CallId id, const handoff::AttemptId& attempt, uint32_t index, Answer answer);
  void OnFinished(CallId id, const handoff::AttemptId& attempt, uint32_t generated);
  void OnEnded(CallId id, const absl::Status& status);
  // Gives up on workers that are not reached any more.
  void Probe();
  uint64_t open() const { return open_; }
  // For a trail, by a request's place in time: its present call, the end of its client, and the end of its call.
  std::optional<CallId> CallOf(uint64_t id) const { return requests_.at(id).call; }
  void Leave(uint64_t id);
  void Lose(uint64_t id);

 private:
  struct Request {
    const Input* input = nullptr;
    Oracle oracle;  // stands behind what was received
    std::vector<TokenId> received;
    handoff::AttemptId attempt;
    std::optional<CallId> call;
    size_t decode = 0;
    std::optional<size_t> failed_on;
    size_t resumed_from = 0;
    int retries = 0, unreached = 0;
    bool attempt_accepted = false, done = false;
  };
  void Launch(uint64_t id);
  void OnFailure(uint64_t id, absl::Status status);
  void End(Request& request, const absl::Status& status);
  Request* Of(CallId id, const handoff::AttemptId& attempt);

  World& world_;
  const size_t index_;
  std::map<uint64_t, Request> requests_;
  std::map<CallId, uint64_t> by_call_;
  uint64_t next_request_ = 1, next_attempt_ = 1;
  uint64_t open_ = 0;
};

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_GATEWAY_H_
