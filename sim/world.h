// One simulation: a scenario played out over workers, a network, a fabric and gateways, with everything watched.
#ifndef COFFERDAM_SIM_WORLD_H_
#define COFFERDAM_SIM_WORLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "sim/clock.h"
#include "sim/content.h"
#include "sim/decode.h"
#include "sim/gates.h"
#include "sim/gateway.h"
#include "sim/network.h"
#include "sim/prefill.h"
#include "sim/scenario.h"

namespace cofferdam::sim {

// How a simulation went. `kind` is empty when nothing was found: else "wrong answer", "invariant", "never ends", "left over", or
// "disturbed": a scenario without faults in which something failed.
struct Outcome {
  std::string kind, what;
  uint64_t events = 0;
  uint64_t requests = 0, answered = 0, failed = 0, tokens = 0;
  uint64_t handoff_failures = 0;
};

class World {
 public:
  // `say`, unless null, is told what happens.
  explicit World(const Scenario& scenario, std::function<void(const std::string&)> say = nullptr);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Outcome Run();
  // Or in parts, instead of Run: a request or a fault, what happens for so long, and what happens until all is over.
  void Start(const Input& input);
  void RunFor(Duration duration);
  Outcome Finish();

  const Scenario& scenario() const { return scenario_; }
  Clock& clock() { return clock_; }
  Gates& gates() { return gates_; }
  // `action` happens then, or when the gate lets it.
  void At(Time time, const GateKey& key, Agenda::Action action);
  void MemoryAt(Time time, const GateKey& key, Agenda::Action action);
  void Now(const GateKey& key, const Agenda::Action& action);
  Network& network() { return network_; }
  Fabric& fabric() { return fabric_; }
  Decode& decode(size_t index) { return *decodes_[index]; }
  Prefill& prefill(size_t index) { return *prefills_[index]; }
  Gateway& gateway(size_t index) { return *gateways_[index]; }
  // The longest prompt with output that a prefill worker promises to hold.
  uint64_t PrefillContext() const;
  uint64_t DecodeContext() const;
  bool Fits(const Input& request) const;

  bool tracing() const { return say_ != nullptr; }
  void Say(const std::string& what);

  // The first finding counts; the simulation ends with it.
  void Found(std::string_view kind, std::string what);
  // Told by workers.
  void OnPagesTaken(Worker& worker, SequenceId sequence, uint32_t domain);
  void OnHandoffFailed(const absl::Status& status);
  void OnPeerClosed();
  void OnRequestEnded(const Input& input, size_t received, const absl::Status& status);

  // The calls between gateways and decode workers: what a decode worker says of one.
  void AcceptCall(size_t gateway, CallId id, const handoff::AttemptId& attempt);
  void SendToken(size_t gateway, CallId id, const handoff::AttemptId& attempt, uint32_t index, Answer answer);
  void FinishCall(size_t gateway, CallId id, const handoff::AttemptId& attempt, uint32_t generated);
  void EndCall(size_t gateway, CallId id, const absl::Status& status);
  // And what a gateway does with it.
  CallId OpenCall(size_t gateway, size_t decode, Call call);
  void CancelCall(CallId id);
  bool Reaches(size_t gateway, size_t decode) const;
  // A decode worker to ask, another one than `avoid` if there is one.
  std::optional<size_t> PickDecode(size_t gateway, std::optional<size_t> avoid);
  const Outcome& outcome() const { return outcome_; }

 private:
  struct OpenedCall {
    size_t gateway = 0, decode = 0;
    uint64_t decode_boot = 0;
    Time last_to_gateway{}, last_to_decode{};
  };
  template <typename Tell>
  void ToGateway(CallId id, Tell tell);
  void Disturb(const Input& fault);
  void Hold(Worker& worker, uint64_t amount, bool silent);
  void CrashDecode(size_t index, uint64_t amount);
  void CrashPrefill(size_t index, uint64_t amount);
  void BreakCall(uint64_t draw);
  void Probe();
  bool AllDone() const;
  void CheckEnd();

  const Scenario& scenario_;
  const std::function<void(const std::string&)> say_;
  Clock clock_;
  Gates gates_;
  Network network_;
  Fabric fabric_;
  std::vector<std::unique_ptr<Decode>> decodes_;
  std::vector<std::unique_ptr<Prefill>> prefills_;
  std::vector<std::unique_ptr<Gateway>> gateways_;
  std::map<CallId, OpenedCall> calls_;
  CallId next_call_ = 1;
  std::map<std::pair<size_t, size_t>, Time> cut_;  // gateway, decode
  size_t next_decode_ = 0;
  const bool faultless_;
  std::unordered_map<uint64_t, uint32_t> domains_;  // by worker's boot and tenure
  uint64_t inputs_left_ = 0, restarts_ = 0;
  Outcome outcome_;
};

Outcome Simulate(const Scenario& scenario);

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_WORLD_H_
