#include "engine/injector.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/sequence.h"

namespace cofferdam::engine {
namespace {

using kv::FaultKind;

constexpr uint64_t kStepsPerImage = 4;

}  // namespace

absl::Status AddRate(std::string_view text, InjectionPlan& plan) {
  const size_t colon = text.find(':');
  const auto kind = std::ranges::find(kv::kFaultKindNames, text.substr(0, colon));
  double rate = 0;
  if (colon == std::string_view::npos || kind == kv::kFaultKindNames.end() ||
      !absl::SimpleAtod(std::string(text.substr(colon + 1)), &rate) || !(rate >= 0 && rate <= 1)) {
    std::vector<std::string> names(kv::kFaultKindNames.begin(), kv::kFaultKindNames.end());
    return absl::InvalidArgumentError(absl::StrCat("--inject takes KIND:RATE with a rate from 0 to 1, not '", std::string(text),
                                                   "'; the kinds are ", absl::StrJoin(names, ", ")));
  }
  plan.rates[static_cast<size_t>(kind - kv::kFaultKindNames.begin())] = rate;
  return absl::OkStatus();
}

Injector::Injector(const InjectionPlan& plan, uint32_t stream, InjectionCounts& counts) : plan_(plan), counts_(counts) {
  std::seed_seq seed{static_cast<uint32_t>(plan.seed), static_cast<uint32_t>(plan.seed >> 32), stream};
  random_.seed(seed);
}

void Injector::Disturb(Engine& engine, std::span<const Engine::Slice> slices) {
  pool_ = &engine.pool_;
  KeepImage(TargetsOf(slices));
  for (size_t i = 0; i < kv::kFaultKinds; ++i) {
    const auto kind = static_cast<FaultKind>(i);
    if (!kv::IsInMemory(kind) || !std::bernoulli_distribution(plan_.rates[i] / 2)(random_) || counts_.LimitReached()) continue;
    if (Inject(kind, TargetsOf(slices))) counts_.AddInjected(kind);
  }
}

std::vector<Injector::Target> Injector::TargetsOf(std::span<const Engine::Slice> slices) const {
  std::vector<Target> targets;
  for (const Engine::Slice& slice : slices) {
    Engine::Sequence& sequence = *slice.sequence;
    if (victims_.contains(sequence.id)) continue;
    // Sealed pages of a prompt have been announced: a peer that reads them when they are wrong, or when the prompt has ended and
    // they are gone, would count the fault a second time.
    if (!sequence.generates() && sequence.sealed_pages > 0) continue;
    const uint64_t pages = pool_->layout().PagesFor(sequence.covered() + slice.rows);
    targets.push_back({.sequence = &sequence, .pages = static_cast<uint32_t>(pages)});
  }
  return targets;
}

Injector::Spot Injector::At(const Target& target, uint32_t ordinal) const {
  const kv::PageHandle& handle = target.sequence->pages[ordinal];
  return {.sequence = target.sequence,
          .page = handle.page(),
          .generation = handle.generation(),
          .bytes = {pool_->Payload(handle.page()).data() - kv::kTagBytes, pool_->layout().page_bytes()}};
}

Injector::Spot Injector::AnyOf(const Target& target) { return At(target, static_cast<uint32_t>(kv::Draw(random_, target.pages))); }

void Injector::KeepImage(std::span<const Target> targets) {
  if (targets.empty() || plan_.RateOf(FaultKind::kStalePage) == 0 || kv::Draw(random_, kStepsPerImage) != 0) return;
  const Spot spot = AnyOf(targets[kv::Draw(random_, targets.size())]);
  Image& image = images_[spot.page];
  image.generation = spot.generation;
  image.bytes.assign(spot.bytes.begin(), spot.bytes.end());
}

bool Injector::Inject(FaultKind kind, std::vector<Target> targets) {
  if (targets.empty()) return false;
  const Target target = targets[kv::Draw(random_, targets.size())];
  switch (kind) {
    case FaultKind::kWrongOwner:
    case FaultKind::kSwap:
      return InjectTwo(kind, std::move(targets));
    case FaultKind::kStalePage:
      return PutBackStale(targets);
    case FaultKind::kSealedFlip:
      return FlipSealed(target);
    case FaultKind::kFillingFlip:
      return FlipFilling(target);
    default:
      break;
  }
  const Spot spot = AnyOf(target);
  if (kind == FaultKind::kOverrun) {
    kv::WriteOverEdge(spot.bytes, random_);
  } else {
    kv::FlipTagBit(spot.bytes, random_);
  }
  MakeVictim(kind, spot);
  return true;
}

bool Injector::InjectTwo(FaultKind kind, std::vector<Target> targets) {
  if (targets.size() < 2) return false;
  std::ranges::shuffle(targets, random_);
  const Spot first = AnyOf(targets[0]), second = AnyOf(targets[1]);
  MakeVictim(kind, first);
  if (kind == FaultKind::kWrongOwner) {
    std::ranges::copy(second.bytes, first.bytes.begin());
  } else {
    std::ranges::swap_ranges(first.bytes, second.bytes);
    MakeVictim(kind, second);
  }
  return true;
}

bool Injector::PutBackStale(std::span<const Target> targets) {
  std::vector<Spot> spots;
  for (const Target& target : targets) {
    for (uint32_t ordinal = 0; ordinal < target.pages; ++ordinal) {
      const Spot spot = At(target, ordinal);
      const auto image = images_.find(spot.page);
      if (image != images_.end() && image->second.generation != spot.generation) spots.push_back(spot);
    }
  }
  if (spots.empty()) return false;
  const Spot& spot = spots[kv::Draw(random_, spots.size())];
  std::ranges::copy(images_.at(spot.page).bytes, spot.bytes.begin());
  MakeVictim(FaultKind::kStalePage, spot);
  return true;
}

bool Injector::FlipSealed(const Target& target) {
  if (target.sequence->sealed_pages == 0) return false;
  const Spot spot = At(target, static_cast<uint32_t>(kv::Draw(random_, target.sequence->sealed_pages)));
  kv::FlipBit(pool_->Payload(spot.page), random_);
  MakeVictim(FaultKind::kSealedFlip, spot);
  return true;
}

bool Injector::FlipFilling(const Target& target) {
  const uint32_t page_tokens = pool_->layout().page_tokens();
  const auto slots = static_cast<uint32_t>(target.sequence->covered() % page_tokens);
  if (!target.sequence->generates() || slots == 0) return false;
  const Spot spot = At(target, static_cast<uint32_t>(target.sequence->covered() / page_tokens));
  kv::FlipWrittenBit(pool_->layout(), pool_->Payload(spot.page), slots, random_);
  MakeVictim(FaultKind::kFillingFlip, spot);
  return true;
}

void Injector::MakeVictim(FaultKind kind, const Spot& spot) {
  victims_.emplace(spot.sequence->id, Victim{.kind = kind, .page = spot.page});
  counts_.AddVictim(kind);
}

void Injector::OnFailed(SequenceId sequence, std::span<const WrongPage> wrong) {
  const auto victim = victims_.find(sequence);
  if (victim == victims_.end()) return;
  const bool found = std::ranges::any_of(wrong, [&](const WrongPage& page) { return page.page == victim->second.page; });
  if (found) counts_.AddCaught(victim->second.kind);
  for (const WrongPage& page : wrong) images_.erase(page.page);  // in quarantine: nobody has it again
  victims_.erase(victim);
}

}  // namespace cofferdam::engine
