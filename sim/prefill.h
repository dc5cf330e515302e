// A prefill worker: what src/worker's PageServer does with gRPC and threads, here over the simulated network.
#ifndef COFFERDAM_SIM_PREFILL_H_
#define COFFERDAM_SIM_PREFILL_H_

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "handoff/prefill_handoff.h"
#include "sim/network.h"
#include "sim/worker.h"

namespace cofferdam::sim {

class Prefill final : public Worker {
 public:
  Prefill(World& world, size_t index);

  // Called on the loop.
  void OnOpen(StreamId id, const OpenRun& open);
  void OnPeerBeat(StreamId id, uint32_t covered_pages);
  void OnClosed(StreamId id);

  // Off the loop. Of the streams, one ends as if all had been said.
  void EndOneWell(uint64_t draw);
  // To this stream, as page 0, that page of another one: for a trail, which remembers what was announced.
  void AnnounceOther(StreamId id, StreamId of, uint32_t ordinal);
  size_t PagesOf(StreamId id) const;
  std::string LeftOverHere() const;

 protected:
  void OnEvents(const std::vector<engine::Event>& events) override;
  void OnTurn(Time now) override;
  void OnBeat() override;
  bool Waits() const override { return !runs_.empty(); }
  void Forget() override;

 private:
  struct Run {
    OpenRun open;
    engine::SequenceSpec spec;
    std::optional<SequenceId> sequence;
    std::unique_ptr<handoff::PrefillHandoff> handoff;
    std::vector<SequenceId> single_pages;  // Fault::kPageByPage
  };
  void StartWaiting();
  // False: it has to wait.
  bool TryStart(StreamId id);
  bool TakeOneMorePage(Run& run);
  std::vector<handoff::AnnouncedPage> Announce(const std::vector<engine::SealedEvent>& sealed) const;
  void Act(StreamId id, const handoff::PrefillActions& actions);
  void OnFailed(const engine::FailedEvent& failed);

  std::map<StreamId, Run> runs_;
  std::map<SequenceId, StreamId> by_sequence_;
  std::set<std::pair<uint64_t, StreamId>> queue_;
  std::map<StreamId, std::vector<handoff::AnnouncedPage>> announced_;  // in a trail
};

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_PREFILL_H_
