// BootHistory's answers to its incidents: whose content, who could have read it, who passed.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "tenure/boot_history.h"

namespace cofferdam::tenure {
namespace {

constexpr Micros kNever = std::numeric_limits<Micros>::max();

void List(Holders& holders, Holder holder) {
  if (holders.listed.size() < kMaxHolders) {
    holders.listed.push_back(std::move(holder));
  } else {
    ++holders.more;
  }
}

bool AllChecksPassed(const Holder& holder) {
  return holder.fate == Fate::kEnded && !holder.own_incident &&
         (holder.outcome == Outcome::kFinished || holder.outcome == Outcome::kHandedOver || holder.outcome == Outcome::kPreempted);
}

bool Overlap(const Holder& a, const Holder& b) {
  const auto end = [](const Holder& holder) { return holder.ended != 0 ? holder.ended : kNever; };
  return a.started < end(b) && b.started < end(a);
}

}  // namespace

// The tenures that the worker remembered and the log does not tell.
void BootHistory::AddRemembered(std::span<const Tenure> tenures, IncidentReport& report) const {
  const Incident& at = report.incident;
  const auto add = [&](const RememberedTenure& remembered, Holders& holders) {
    const auto found = index_.find(remembered.sequence.value());
    const bool known = found != index_.end() && std::ranges::any_of(tenures, [&](const Tenure& tenure) {
                         return tenure.sequence == found->second && tenure.generation == remembered.tenure.generation;
                       });
    if (known || remembered.tenure.page != at.page) return;
    List(holders, {.sequence = remembered.sequence,
                   .request_id = remembered.request_id,
                   .domain = remembered.domain,
                   .generation = remembered.tenure.generation,
                   .started = remembered.started,
                   .ended = remembered.ended,
                   .fate = remembered.ended != 0 ? Fate::kEnded : Fate::kOpen,
                   .tag_was_found = remembered.tenure.generation == at.found_generation,
                   .shared = remembered.tenure.generation == at.expected_generation,
                   .from_incident = true});
  };
  for (const RememberedTenure& earlier : at.earlier) add(earlier, report.content);
  for (const RememberedTenure& sharer : at.sharers) add(sharer, report.exposed);
}

// `sharers`: tenures in the incident's generation. All of them count, whether their checks passed or not: the page may have been
// wrong before a check saw it.
void BootHistory::ListSharers(std::span<const Tenure> sharers, const Holder& owner, bool at_once, IncidentReport& report) const {
  const Incident& at = report.incident;
  for (const Tenure& tenure : sharers) {
    if (sequences_[tenure.sequence].id == at.sequence) continue;
    Holder holder = HolderOf(tenure);
    holder.shared = true;
    holder.overlaps = Overlap(holder, owner);
    if (holder.overlaps != at_once) continue;
    holder.tag_was_found = holder.generation == at.found_generation;
    holder.checks_passed = AllChecksPassed(holder);
    List(report.exposed, std::move(holder));
  }
}

IncidentReport BootHistory::Judge(Incident incident) const {
  IncidentReport report{.incident = std::move(incident)};
  const Incident& at = report.incident;
  const auto found = histories_.find(at.page.value());
  std::vector<Tenure> tenures = found == histories_.end() ? std::vector<Tenure>() : found->second;
  std::ranges::stable_sort(tenures, std::ranges::greater{}, [](const Tenure& t) { return std::pair(t.generation, t.started); });
  const auto sharers = std::ranges::equal_range(tenures, at.expected_generation, std::ranges::greater{}, &Tenure::generation);
  for (const Tenure& tenure : sharers) {
    if (sequences_[tenure.sequence].id == at.sequence) report.owner = HolderOf(tenure);
  }
  // Without its start, the owner is taken to have held the page at the incident's own moment.
  const Holder owner = report.owner.value_or(
      Holder{.sequence = at.sequence, .generation = at.expected_generation, .started = at.stamp.time, .ended = at.stamp.time + 1});
  // From the first to the last of those who shared the generation.
  Holder all = owner;
  for (const Tenure& tenure : sharers) {
    const Sequence& sequence = sequences_[tenure.sequence];
    all.started = std::min(all.started, tenure.started);
    all.ended = !sequence.has_ended || all.ended == 0 ? 0 : std::max(all.ended, sequence.ended);
  }
  // Lists have an end: who holds the page now comes first, who shared it at another time last.
  ListSharers(sharers, owner, true, report);
  for (const Tenure& tenure : tenures) {
    if (tenure.generation == at.expected_generation) continue;
    Holder holder = HolderOf(tenure);
    holder.tag_was_found = holder.generation == at.found_generation;
    holder.overlaps = Overlap(holder, all);
    holder.checks_passed = AllChecksPassed(holder);
    const bool later = holder.generation > at.expected_generation;
    if (!later) List(report.content, holder);
    if (later || holder.overlaps) List(holder.checks_passed ? report.passed : report.exposed, std::move(holder));
  }
  ListSharers(sharers, owner, false, report);
  AddRemembered(tenures, report);
  std::ranges::stable_sort(report.content.listed, std::ranges::greater{}, &Holder::generation);
  return report;
}

// Sharers of another domain whose start the log has lost: the findings from what it has do not know of them.
void BootHistory::FindRememberedDomains(const IncidentReport& report) {
  const Incident& at = report.incident;
  for (const Holder& holder : report.exposed.listed) {
    if (!holder.shared || !holder.from_incident || at.domain.empty() || holder.domain == at.domain) continue;
    Find(Finding::Kind::kSharedAcrossDomains, at.stamp.time,
         absl::StrCat("page ", at.page.value(),
                      " was shared by two isolation domains, which must never be: the incident's record names request ",
                      holder.request_id, " (sequence ", holder.sequence.value(), ", domain ", holder.domain,
                      ") beside the owner, request ", at.request_id, " (sequence ", at.sequence.value(), ", domain ", at.domain,
                      "), in generation ", at.expected_generation.value()));
  }
}

void BootHistory::FinishIncidents() {
  if (incidents_.empty()) return;
  gathered_.on_boots.push_back(std::move(on_boot_));
  // Incidents of one page share its holders.
  absl::flat_hash_map<uint32_t, absl::flat_hash_set<RequestHash>> holders;
  for (const auto& [page, tenures] : histories_) {
    for (const Tenure& tenure : tenures) holders[page].insert(HashOf(sequences_[tenure.sequence]));
  }
  for (Incident& incident : incidents_) {
    auto touched = holders[incident.page.value()];
    if (!incident.request_id.empty()) touched.insert(absl::HashOf(incident.request_id));
    for (const auto* remembered : {&incident.earlier, &incident.sharers}) {
      for (const RememberedTenure& one : *remembered) {
        if (!one.request_id.empty()) touched.insert(absl::HashOf(one.request_id));
      }
    }
    IncidentReport report = Judge(std::move(incident));
    if (report.incident.action == kActionEnded && report.owner.has_value() && report.owner->fate == Fate::kEnded &&
        (report.owner->outcome == Outcome::kFinished || report.owner->outcome == Outcome::kHandedOver)) {
      Find(Finding::Kind::kOwnerFinished, report.owner->ended,
           absl::StrCat("request ", report.owner->request_id, " (sequence ", report.owner->sequence.value(),
                        ") had to be ended for the incident on page ", report.incident.page.value(), ", and finished"));
    }
    FindRememberedDomains(report);
    gathered_.report.incidents.push_back(std::move(report));
    gathered_.touched.push_back({std::move(touched), &gathered_.on_boots.back()});
  }
}

}  // namespace cofferdam::tenure
