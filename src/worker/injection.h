// All faults that one worker has put into it while it serves, and their counts: builds with COFFERDAM_FAULTS alone.
#ifndef COFFERDAM_WORKER_INJECTION_H_
#define COFFERDAM_WORKER_INJECTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cofferdam.pb.h"
#include "engine/injector.h"
#include "kv/seal.h"

namespace cofferdam::worker {

// Faults in pages that have arrived from a peer and have not been verified yet. Thread-safe.
class ArrivalInjector {
 public:
  ArrivalInjector(const engine::InjectionPlan& plan, engine::InjectionCounts& counts);
  // Changes payload or seal, or neither; returns the fault that was put in.
  std::optional<kv::FaultKind> Spoil(std::span<std::byte> payload, kv::Seal& seal);

 private:
  struct Page {
    std::vector<std::byte> payload;
    kv::Seal seal;
  };
  // False when there is no other page yet, or the other one is just the same.
  bool SpoilAs(kv::FaultKind kind, const Page& good, std::span<std::byte> payload, kv::Seal& seal) CD_REQUIRES(mutex_);
  void Keep(Page page) CD_REQUIRES(mutex_);

  const engine::InjectionPlan plan_;
  engine::InjectionCounts& counts_;
  Mutex mutex_;
  kv::Random random_ CD_GUARDED_BY(mutex_);
  std::vector<Page> kept_ CD_GUARDED_BY(mutex_);  // as they arrived, the last kKept of them
  size_t newest_ CD_GUARDED_BY(mutex_) = 0;
};

class Injection {
 public:
  // The engine is disturbed from now on, and outlived.
  Injection(const engine::InjectionPlan& plan, const std::string& role, engine::Engine& engine);

  // The fabric's threads, before what has arrived is verified.
  std::optional<kv::FaultKind> Spoil(std::span<std::byte> payload, kv::Seal& seal) { return arrivals_.Spoil(payload, seal); }
  // The engine's thread: a page with such a fault has been judged. `running`: so was the handoff that it was read for; otherwise
  // nobody wanted it any more.
  void OnArrivalJudged(kv::FaultKind fault, bool running);

  void AddMetrics(v1::WorkerInfo& info) const;

 private:
  engine::InjectionCounts counts_;
  engine::Injector memory_;
  ArrivalInjector arrivals_;
  uint64_t late_faults_ = 0;  // the engine's thread
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_INJECTION_H_
