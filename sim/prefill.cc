#include "sim/prefill.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/faults.h"
#include "sim/world.h"

namespace cofferdam::sim {

Prefill::Prefill(World& world, size_t index) : Worker(world, "prefill", index, world.scenario().prefill_pages) {}

void Prefill::Forget() {
  runs_.clear();
  by_sequence_.clear();
  queue_.clear();
  announced_.clear();
}

void Prefill::OnOpen(StreamId id, const OpenRun& open) {
  engine::SequenceSpec spec{.domain_key = KeyOf(open.domain), .domain = NameOf(open.domain)};
  spec.tokens = open.tokens;
  spec.order = open.order;
  if (absl::Status status = engine().CheckSpec(spec); !status.ok()) return world_.network().EndByPrefill(id, status);
  if (open.recompute) engine().ForgetCached(spec);
  Run& run = runs_[id];
  run.open = open;
  run.spec = std::move(spec);
  run.handoff = std::make_unique<handoff::PrefillHandoff>(
      handoff::PrefillHandoff::Options{.pages = static_cast<uint32_t>(SimLayout().PagesFor(open.tokens.size())),
                                       .first_page = open.first_page,
                                       .silence_limit = kBeat * world_.scenario().silent_beats,
                                       .progress_limit = kBeat * world_.scenario().stalled_beats},
      world_.clock().now());
  queue_.emplace(run.spec.order, id);
  StartWaiting();
}

void Prefill::StartWaiting() {
  for (auto next = queue_.begin(); next != queue_.end();) {
    if (!world_.gates().MayAdmit(Gate::kOpen, next->second)) {
      ++next;
      continue;
    }
    const auto found = runs_.find(next->second);
    if (found != runs_.end() && !found->second.handoff->closed() && !TryStart(next->second)) {
      // Only the mutant asks for those behind the first.
      if (!FaultIsOn(Fault::kPageByPage)) return;
      ++next;
      continue;
    }
    next = queue_.erase(next);
  }
}

// Holds it with a sequence of its own that never runs. True when there are enough.
bool Prefill::TakeOneMorePage(Run& run) {
  if (run.single_pages.size() >= SimLayout().PagesFor(run.spec.tokens.size())) return true;
  engine::SequenceSpec page{.domain_key = kv::Key{1}, .domain = absl::StrCat("page ", run.single_pages.size())};
  page.tokens.assign(kPageTokens, 1);
  const auto started = engine().Start(page);
  if (const auto* one = std::get_if<engine::Engine::Started>(&started)) run.single_pages.push_back(one->sequence);
  return false;
}

bool Prefill::TryStart(StreamId id) {
  Run& run = runs_.at(id);
  if (FaultIsOn(Fault::kPageByPage)) {
    if (!TakeOneMorePage(run)) return false;
    for (const SequenceId page : std::exchange(run.single_pages, {})) engine().Release(page);
    engine().Reclaim();
  }
  auto result = engine().Start(run.spec);
  if (std::holds_alternative<kv::MustWait>(result)) return false;
  handoff::PrefillActions actions;
  if (auto* rejected = std::get_if<kv::Rejected>(&result)) {
    run.handoff->OnRefused(rejected->status, actions);
    Act(id, actions);
    return true;
  }
  run.sequence = std::get<engine::Engine::Started>(result).sequence;
  by_sequence_.emplace(*run.sequence, id);
  world_.OnPagesTaken(*this, *run.sequence, run.open.domain);
  engine().Run(*run.sequence);
  run.handoff->OnReserved(actions);
  if (auto found = Announce(engine().SealedPages(*run.sequence)); !found.empty()) run.handoff->OnSealed(std::move(found), actions);
  Act(id, actions);
  return true;
}

void Prefill::OnPeerBeat(StreamId id, uint32_t covered_pages) {
  if (const auto found = runs_.find(id); found != runs_.end())
    found->second.handoff->OnPeerHeartbeat(covered_pages, world_.clock().now());
}

void Prefill::OnClosed(StreamId id) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
  handoff::PrefillActions actions;
  found->second.handoff->OnStreamClosed(actions);
  Act(id, actions);
  for (const SequenceId page : found->second.single_pages) engine().Release(page);
  runs_.erase(id);
}

void Prefill::EndOneWell(uint64_t draw) {
  if (runs_.empty()) return;
  const auto run = std::next(runs_.begin(), static_cast<ptrdiff_t>(draw % runs_.size()));
  world_.network().EndByPrefill(run->first, absl::OkStatus());
}

size_t Prefill::PagesOf(StreamId id) const {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return 0;
  const Run& run = found->second;
  return run.sequence.has_value() ? SimLayout().PagesFor(run.spec.tokens.size()) : run.single_pages.size();
}

void Prefill::AnnounceOther(StreamId id, StreamId of, uint32_t ordinal) {
  const auto run = runs_.find(id);
  for (handoff::AnnouncedPage page : announced_[of]) {
    if (run == runs_.end() || page.ordinal != ordinal) continue;
    page.ordinal = 0;
    return world_.network().SendToDecode(id, {.attempt = run->second.open.attempt, .body = SealedMessage{{page}}});
  }
}

std::vector<handoff::AnnouncedPage> Prefill::Announce(const std::vector<engine::SealedEvent>& sealed) const {
  std::vector<handoff::AnnouncedPage> pages;
  for (const engine::SealedEvent& page : sealed) {
    pages.push_back(
        {.ordinal = page.ordinal,
         .source = {.region = boot_id(), .offset = pool().PayloadOffset(page.page), .generation = page.generation.value()},
         .seal = page.seal});
  }
  return pages;
}

void Prefill::Act(StreamId id, const handoff::PrefillActions& actions) {
  Run& run = runs_.at(id);
  for (const handoff::PrefillAction& action : actions) {
    if (std::holds_alternative<handoff::SendAdmitted>(action)) {
      world_.network().SendToDecode(id, {.attempt = run.open.attempt, .body = AdmittedMessage{}});
    } else if (const auto* sealed = std::get_if<handoff::SendSealed>(&action)) {
      world_.network().SendToDecode(id, {.attempt = run.open.attempt, .body = SealedMessage{sealed->pages}});
      if (world_.gates().closed()) std::ranges::copy(sealed->pages, std::back_inserter(announced_[id]));
    } else if (const auto* end = std::get_if<handoff::EndStream>(&action)) {
      world_.network().EndByPrefill(id, end->status);
    } else if (std::holds_alternative<handoff::Unpin>(action)) {
      by_sequence_.erase(*run.sequence);
      engine().Release(*run.sequence);
    }
  }
}

void Prefill::OnFailed(const engine::FailedEvent& failed) {
  const auto found = by_sequence_.find(failed.sequence);
  if (found == by_sequence_.end()) return;
  const StreamId id = found->second;
  by_sequence_.erase(found);
  handoff::PrefillActions actions;
  runs_.at(id).handoff->OnComputeFailed(failed.status, actions);
  Act(id, actions);
}

void Prefill::OnEvents(const std::vector<engine::Event>& events) {
  std::map<SequenceId, std::vector<engine::SealedEvent>> sealed;
  for (const engine::Event& event : events) {
    if (const auto* page = std::get_if<engine::SealedEvent>(&event)) {
      sealed[page->sequence].push_back(*page);
    } else if (const auto* failed = std::get_if<engine::FailedEvent>(&event)) {
      OnFailed(*failed);
    }
  }
  for (auto& [sequence, pages] : sealed) {
    const auto found = by_sequence_.find(sequence);
    if (found == by_sequence_.end()) continue;
    handoff::PrefillActions actions;
    runs_.at(found->second).handoff->OnSealed(Announce(pages), actions);
    Act(found->second, actions);
  }
}

void Prefill::OnTurn(Time now) {
  StartWaiting();
  handoff::PrefillActions actions;
  for (auto& [id, run] : runs_) {
    run.handoff->OnTick(now, actions);
    if (actions.empty()) continue;
    Act(id, actions);
    actions.clear();
  }
}

void Prefill::OnBeat() {
  for (const auto& [id, run] : runs_)
    world_.network().SendToDecode(id, {.attempt = run.open.attempt, .body = BeatMessage{.steps = steps()}});
}

std::string Prefill::LeftOverHere() const {
  if (!runs_.empty()) return absl::StrCat(name(), " still has runs");
  return LeftOver();
}

}  // namespace cofferdam::sim
