#include "worker/injection.h"

#include <algorithm>
#include <utility>

#include "worker/worker.h"

namespace cofferdam::worker {
namespace {

using kv::FaultKind;

constexpr size_t kKept = 256;
enum Stream : uint32_t { kPrefillMemory, kDecodeMemory, kArrivals };

}  // namespace

ArrivalInjector::ArrivalInjector(const engine::InjectionPlan& plan, engine::InjectionCounts& counts)
    : plan_(plan), counts_(counts) {
  std::seed_seq seed{static_cast<uint32_t>(plan.seed), static_cast<uint32_t>(plan.seed >> 32), uint32_t{kArrivals}};
  random_.seed(seed);
}

std::optional<FaultKind> ArrivalInjector::Spoil(std::span<std::byte> payload, kv::Seal& seal) {
  MutexLock lock(mutex_);
  Page good{.payload = {payload.begin(), payload.end()}, .seal = seal};
  std::optional<FaultKind> fault;
  for (size_t i = 0; i < kv::kFaultKinds && !fault.has_value(); ++i) {
    const auto kind = static_cast<FaultKind>(i);
    if (kv::IsInMemory(kind) || !std::bernoulli_distribution(plan_.rates[i])(random_) || counts_.LimitReached()) continue;
    if (SpoilAs(kind, good, payload, seal)) fault = kind;
  }
  Keep(std::move(good));
  if (fault.has_value()) {
    counts_.AddInjected(*fault);
    counts_.AddVictim(*fault);
  }
  return fault;
}

bool ArrivalInjector::SpoilAs(FaultKind kind, const Page& good, std::span<std::byte> payload, kv::Seal& seal) {
  if (kind == FaultKind::kArrivalFlip) {
    kv::FlipBit(payload, random_);
  } else if (kind == FaultKind::kArrivalTorn) {
    kv::TearCopy(payload);
  } else {
    if (kept_.empty()) return false;
    // The page that was read just before is most often this prompt's; any of those kept is most often another's.
    const Page& other = kind == FaultKind::kArrivalSwap ? kept_[newest_] : kept_[kv::Draw(random_, kept_.size())];
    std::ranges::copy(other.payload, payload.begin());
    if (kind == FaultKind::kArrivalOther) seal = other.seal;
  }
  return !std::ranges::equal(payload, good.payload) || seal != good.seal;
}

void ArrivalInjector::Keep(Page page) {
  if (kept_.size() < kKept) {
    newest_ = kept_.size();
    kept_.push_back(std::move(page));
  } else {
    newest_ = (newest_ + 1) % kKept;
    kept_[newest_] = std::move(page);
  }
}

Injection::Injection(const engine::InjectionPlan& plan, const std::string& role, engine::Engine& engine)
    : counts_(plan.limit), memory_(plan, role == "prefill" ? kPrefillMemory : kDecodeMemory, counts_), arrivals_(plan, counts_) {
  engine.DisturbWith(&memory_);
}

void Injection::OnArrivalJudged(FaultKind fault, bool running) {
  counts_.AddCaught(fault);
  late_faults_ += running ? 0 : 1;
}

void Injection::AddMetrics(v1::WorkerInfo& info) const {
  for (size_t i = 0; i < kv::kFaultKinds; ++i) {
    const auto add = [&](const char* name, uint64_t value, const char* help) {
      *info.add_metrics() =
          MakeMetric(name, v1::Metric::COUNTER, static_cast<double>(value), help, {{"kind", std::string(kv::kFaultKindNames[i])}});
    };
    add("faults_injected_total", counts_.injected(i), "Faults put in on purpose, by kind");
    add("fault_victims_total", counts_.victims(i), "Pages that such faults made wrong, each of another sequence or read");
    add("faults_caught_total", counts_.caught(i), "Of these pages, those that a check found");
  }
  *info.add_metrics() = MakeMetric("late_faults_total", v1::Metric::COUNTER, static_cast<double>(late_faults_),
                                   "Faults put into reads that ended after their handoff had");
}

}  // namespace cofferdam::worker
