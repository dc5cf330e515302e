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
         (holder.outcome == Outcome::kFinished || holder.outcome == Outcome::kHandedOver);
}

bool Overlap(const Holder& a, const Holder& b) {
  const auto end = [](const Holder& holder) { return holder.ended != 0 ? holder.ended : kNever; };
  return a.started < end(b) && b.started < end(a);
}

// The tenures that the worker remembered and the log does not tell.
void AddRemembered(IncidentReport& report, const absl::flat_hash_set<uint64_t>& known) {
  for (const EarlierTenure& earlier : report.incident.earlier) {
    if (earlier.tenure.page != report.incident.page || known.contains(earlier.tenure.generation.value())) continue;
    List(report.content, {.sequence = earlier.sequence,
                          .request_id = earlier.request_id,
                          .domain = earlier.domain,
                          .generation = earlier.tenure.generation,
                          .started = earlier.started,
                          .ended = earlier.ended,
                          .fate = earlier.ended != 0 ? Fate::kEnded : Fate::kOpen,
                          .tag_was_found = earlier.tenure.generation == report.incident.found_generation,
                          .from_incident = true});
  }
}

}  // namespace

IncidentReport BootHistory::Judge(Incident incident) const {
  IncidentReport report{.incident = std::move(incident)};
  const Incident& at = report.incident;
  const auto found = histories_.find(at.page.value());
  std::vector<Tenure> tenures = found == histories_.end() ? std::vector<Tenure>() : found->second;
  std::ranges::stable_sort(tenures, std::ranges::greater{}, &Tenure::generation);
  absl::flat_hash_set<uint64_t> known;
  for (const Tenure& tenure : tenures) {
    known.insert(tenure.generation.value());
    if (tenure.generation == at.expected_generation && sequences_[tenure.sequence].id == at.sequence)
      report.owner = HolderOf(tenure);
  }
  // Without its start, the owner is taken to have held the page at the incident's own moment.
  const Holder owner = report.owner.value_or(
      Holder{.sequence = at.sequence, .generation = at.expected_generation, .started = at.stamp.time, .ended = at.stamp.time + 1});
  for (const Tenure& tenure : tenures) {
    Holder holder = HolderOf(tenure);
    if (holder.sequence == at.sequence && holder.generation == at.expected_generation) continue;
    holder.tag_was_found = holder.generation == at.found_generation;
    holder.overlaps = Overlap(holder, owner);
    const bool later = holder.generation >= at.expected_generation;
    if (!later) List(report.content, holder);
    if (later || holder.overlaps) List(AllChecksPassed(holder) ? report.passed : report.exposed, std::move(holder));
  }
  AddRemembered(report, known);
  std::ranges::stable_sort(report.content.listed, std::ranges::greater{}, &Holder::generation);
  return report;
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
    for (const EarlierTenure& earlier : incident.earlier) {
      if (!earlier.request_id.empty()) touched.insert(absl::HashOf(earlier.request_id));
    }
    IncidentReport report = Judge(std::move(incident));
    if (report.incident.action == kActionEnded && report.owner.has_value() && report.owner->fate == Fate::kEnded &&
        (report.owner->outcome == Outcome::kFinished || report.owner->outcome == Outcome::kHandedOver)) {
      Find(Finding::Kind::kOwnerFinished, report.owner->ended,
           absl::StrCat("request ", report.owner->request_id, " (sequence ", report.owner->sequence.value(),
                        ") had to be ended for the incident on page ", report.incident.page.value(), ", and finished"));
    }
    gathered_.report.incidents.push_back(std::move(report));
    gathered_.touched.push_back({std::move(touched), &gathered_.on_boots.back()});
  }
}

}  // namespace cofferdam::tenure
