// Several handoffs at once, in whatever order the choices say: requests of two tenants, one decode worker, two prefill workers, and
// the pools, windows and messages between them. The random test and the fuzzer of event orders run the same world.
#ifndef COFFERDAM_HANDOFF_RANDOM_WORLD_H_
#define COFFERDAM_HANDOFF_RANDOM_WORLD_H_

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "handoff/random_transfer.h"

namespace cofferdam::handoff::testing {

// One schedule. One thread.
class World {
 public:
  // `broken` is told of the first invariant that does not hold; the schedule ends there.
  World(Choices& choices, Marks& marks, std::function<void(const char*)> broken);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void Run();

 private:
  static constexpr size_t kMostTransfers = 8;
  static constexpr int kMostEvents = 600;

  bool Over() const;
  void AnyEvent();
  void OnAnyTransfer(void (Transfer::*event)());
  void StartOne();
  Request NewRequest();
  void StepSource(Source& source);
  void EndStep(Source& source);
  void AdvanceRead(Transfer& transfer);
  void OfferWindow();
  void GiveOther(Source& source);
  void Tick();
  void LateMessage();
  void CheckWindows();
  void Drain();

  Setting setting_;
  std::unique_ptr<TransferWindow> cap_;
  size_t cap_bytes_ = 0;
  std::unique_ptr<Memory> sink_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<std::unique_ptr<Transfer>> transfers_;  // oldest first; those that are over stay, and hear what comes late
  uint64_t requests_left_ = 0, requests_ = 0;
};

}  // namespace cofferdam::handoff::testing

#endif  // COFFERDAM_HANDOFF_RANDOM_WORLD_H_
