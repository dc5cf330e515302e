// Puts faults into the memory of pages that sequences own, while a worker serves: builds with COFFERDAM_FAULTS alone.
#ifndef COFFERDAM_ENGINE_INJECTOR_H_
#define COFFERDAM_ENGINE_INJECTOR_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "kv/corruption.h"

namespace cofferdam::engine {

struct InjectionPlan {
  std::array<double, kv::kFaultKinds> rates{};  // by kind: of a step, or of a read
  uint64_t seed = 0;
  uint64_t limit = std::numeric_limits<uint64_t>::max();  // faults of one worker

  double RateOf(kv::FaultKind kind) const { return rates[static_cast<size_t>(kind)]; }
};

// Adds one "KIND:RATE". InvalidArgument that names the kinds for anything else.
absl::Status AddRate(std::string_view text, InjectionPlan& plan);

// What was put in and what was found, of one worker. Thread-safe.
class InjectionCounts {
 public:
  explicit InjectionCounts(uint64_t limit) : limit_(limit) {}
  // Several threads that ask at once may go over the limit by one each.
  bool LimitReached() const { return total_ >= limit_; }
  void AddInjected(kv::FaultKind kind) {
    ++injected_[static_cast<size_t>(kind)];
    ++total_;
  }
  void AddVictim(kv::FaultKind kind) { ++victims_[static_cast<size_t>(kind)]; }
  void AddCaught(kv::FaultKind kind) { ++caught_[static_cast<size_t>(kind)]; }
  uint64_t injected(size_t kind) const { return injected_[kind]; }
  uint64_t victims(size_t kind) const { return victims_[kind]; }
  uint64_t caught(size_t kind) const { return caught_[kind]; }

 private:
  using PerKind = std::array<std::atomic<uint64_t>, kv::kFaultKinds>;
  const uint64_t limit_;
  std::atomic<uint64_t> total_{0};
  PerKind injected_{}, victims_{}, caught_{};
};

// The engine's thread only. A fault has one or two victims: sequences of the step under way, with one wrong page each, in which no
// other fault ever is. So every victim is judged in the turn in which it became one, and its client cannot go away in between.
class Injector {
 public:
  // `stream` tells the random numbers of one worker from those of another with the same seed.
  Injector(const InjectionPlan& plan, uint32_t stream, InjectionCounts& counts);

  // Twice in every step: before the tags are compared for the first time, and after it. The faults of a step are shared out among
  // both, so that either comparison has some to find.
  void Disturb(Engine& engine, std::span<const Engine::Slice> slices);
  // A check has ended this sequence because of these pages.
  void OnFailed(SequenceId sequence, std::span<const WrongPage> wrong);

 private:
  // The first pages of a sequence, which are those that the step's checks look at.
  struct Target {
    Engine::Sequence* sequence;
    uint32_t pages;
  };
  struct Spot {
    Engine::Sequence* sequence;
    PageId page;
    Generation generation;
    std::span<std::byte> bytes;  // with both tags
  };
  struct Victim {
    kv::FaultKind kind;
    PageId page;
  };
  struct Image {
    Generation generation;
    std::vector<std::byte> bytes;
  };

  std::vector<Target> TargetsOf(std::span<const Engine::Slice> slices) const;
  Spot At(const Target& target, uint32_t ordinal) const;
  Spot AnyOf(const Target& target);
  void KeepImage(std::span<const Target> targets);
  // Each returns false when there is nobody for this kind of fault now.
  bool Inject(kv::FaultKind kind, std::vector<Target> targets);
  bool InjectTwo(kv::FaultKind kind, std::vector<Target> targets);
  bool PutBackStale(std::span<const Target> targets);
  bool FlipSealed(const Target& target);
  bool FlipFilling(const Target& target);
  void MakeVictim(kv::FaultKind kind, const Spot& spot);

  const InjectionPlan plan_;
  kv::Random random_;
  InjectionCounts& counts_;
  kv::Pool* pool_ = nullptr;  // of the step under way
  std::map<SequenceId, Victim> victims_;
  std::map<PageId, Image> images_;  // what earlier tenures held, or present ones hold; at most one a page
};

}  // namespace cofferdam::engine

#endif  // COFFERDAM_ENGINE_INJECTOR_H_
