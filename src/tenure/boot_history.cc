#include "tenure/boot_history.h"

#include <algorithm>
#include <limits>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "tenure/time.h"

namespace cofferdam::tenure {
namespace {

constexpr Micros kNever = std::numeric_limits<Micros>::max();
constexpr size_t kMaxConflicts = 100'000;  // pairs of sequences; a log with more is beyond being told one by one

uint64_t Plus(uint64_t a, uint64_t b) { return a + std::min(b, std::numeric_limits<uint64_t>::max() - a); }

}  // namespace

bool InTime(const Query& query, Micros from, Micros to) {
  return from <= query.until.value_or(kNever) && to >= query.since.value_or(0);
}

void AddFinding(Report& report, Finding finding) {
  if (!InTime(report.query, finding.stamp.time, finding.stamp.time)) return;
  if (report.findings.size() < kMaxFindings) {
    report.findings.push_back(std::move(finding));
  } else {
    ++report.more_findings;
  }
}

BootHistory::BootHistory(Role role, BootId boot, absl::flat_hash_set<uint32_t> pages, Gathered& gathered)
    : incident_pages_(std::move(pages)), gathered_(gathered) {
  summary_.role = role;
  summary_.boot = boot;
}

void BootHistory::Add(Record record) {
  const Micros time = StampOf(record).time;
  summary_.first = summary_.records == 0 ? time : std::min(summary_.first, time);
  summary_.last = std::max(summary_.last, time);
  ++summary_.records;
  std::visit([&](auto& r) { Take(r); }, record);
}

void BootHistory::Take(Boot& boot) {
  summary_.pages = boot.pages;
  summary_.page_tokens = boot.page_tokens;
  summary_.version = std::move(boot.version);
}

void BootHistory::Take(Started& started) {
  const Micros time = started.stamp.time;
  const uint32_t index = IndexOf(started);
  Sequence& sequence = sequences_[index];
  if (sequence.has_ended) {
    Find(Finding::Kind::kSequenceReused, time,
         absl::StrCat("sequence ", sequence.id.value(), " (request ", sequence.request_id, ") took ", started.pages.size(),
                      " pages after it had ended at ", FormatTime(sequence.ended)));
    sequence.has_ended = false;
  }
  if (const auto found = rejected_.find(started.request_id); found != rejected_.end() && !sequence.rejected_before) {
    sequence.rejected_before = true;
    Find(Finding::Kind::kRejectedThenStarted, time,
         absl::StrCat("request ", started.request_id, " was rejected (", found->second, ") and took ", started.pages.size(),
                      " pages after that, as sequence ", sequence.id.value()));
  }
  sequence.pages += started.pages.size();
  sequence.more_pages = started.more_pages;
  for (const PageTenure& tenure : started.pages) TakePage(index, tenure, time);
}

uint32_t BootHistory::IndexOf(Started& started) {
  const auto [found, is_new] = index_.try_emplace(started.sequence.value(), static_cast<uint32_t>(sequences_.size()));
  if (!is_new) return found->second;
  ++summary_.started;
  const auto [domain, domain_is_new] = domain_index_.try_emplace(started.domain, static_cast<uint32_t>(domains_.size()));
  if (domain_is_new) domains_.push_back(started.domain);
  Sequence& sequence = sequences_.emplace_back();
  sequence.id = started.sequence;
  sequence.request_id = started.request_id;
  sequence.domain = domain->second;
  sequence.prompt_tokens = started.prompt_tokens;
  sequence.max_output = started.max_output;
  sequence.started = started.stamp.time;
  return found->second;
}

void BootHistory::TakePage(uint32_t index, const PageTenure& taken, Micros time) {
  const Tenure tenure{index, taken.generation, time};
  const auto [found, is_first] = occupancies_.try_emplace(taken.page.value());
  Occupancy& occupancy = found->second;
  if (!is_first && occupancy.first.generation == taken.generation) {
    if (!Share(occupancy, tenure, taken.page)) return;
  } else {
    if (!is_first) TakeOver(occupancy, tenure, taken.page);
    occupancy.first = tenure;
    occupancy.holders.clear();
    occupancy.holders.emplace(index, time);
    occupancy.sweep_at = kSweepAt;
  }
  if (incident_pages_.contains(taken.page.value())) histories_[taken.page.value()].push_back(tenure);
}

bool BootHistory::Share(Occupancy& occupancy, const Tenure& tenure, PageId page) {
  // The same line twice says nothing new.
  if (!occupancy.holders.emplace(tenure.sequence, tenure.started).second) return false;
  if (occupancy.holders.size() >= occupancy.sweep_at) Sweep(occupancy);
  // I10, also when the first one has ended: what was cached for its domain is not for another.
  if (sequences_[occupancy.first.sequence].domain != sequences_[tenure.sequence].domain)
    Note(across_domains_, occupancy.first, tenure, page);
  return true;
}

void BootHistory::Sweep(Occupancy& occupancy) const {
  const Sequence* last = nullptr;
  for (const auto& [index, started] : occupancy.holders) {
    const Sequence& sequence = sequences_[index];
    if (sequence.has_ended && (last == nullptr || sequence.ended > last->ended)) last = &sequence;
  }
  absl::erase_if(occupancy.holders, [&](const auto& holder) {
    const Sequence& sequence = sequences_[holder.first];
    return sequence.has_ended && &sequence != last;
  });
  occupancy.sweep_at = std::max(kSweepAt, 2 * occupancy.holders.size());
}

void BootHistory::TakeOver(const Occupancy& before, const Tenure& tenure, PageId page) {
  const Tenure& first = before.first;
  if (tenure.generation < first.generation) {
    Find(Finding::Kind::kGenerationBackwards, tenure.started,
         absl::StrCat("page ", page.value(), " was given to request ", sequences_[tenure.sequence].request_id, " (sequence ",
                      sequences_[tenure.sequence].id.value(), ") with generation ", tenure.generation.value(), ", after request ",
                      sequences_[first.sequence].request_id, " (sequence ", sequences_[first.sequence].id.value(), ") had it with ",
                      first.generation.value()));
  }
  // The page is free for a new generation when all who share the one before have ended.
  for (const auto& [index, started] : before.holders) {
    const Sequence& holder = sequences_[index];
    if (index == tenure.sequence || (holder.has_ended && holder.ended <= tenure.started)) continue;
    // An end may still come, with a time before this one: FinishConflicts judges.
    Note(two_owners_, {index, first.generation, started}, tenure, page);
  }
}

void BootHistory::Note(Conflicts& conflicts, const Tenure& earlier, const Tenure& later, PageId page) {
  const std::pair<uint32_t, uint32_t> key{earlier.sequence, later.sequence};
  const auto found = conflicts.find(key);
  if (found != conflicts.end()) {
    ++found->second.pages;
  } else if (conflicts.size() < kMaxConflicts) {
    conflicts[key] = {page, earlier, later, sequences_[earlier.sequence].has_ended, 1};
  } else if (InTime(gathered_.report.query, later.started, later.started)) {
    ++gathered_.report.more_findings;
  }
}

void BootHistory::Take(Ended& ended) {
  const auto found = index_.find(ended.sequence.value());
  if (found == index_.end()) {
    ++ends_without_start_;
    return;
  }
  Sequence& sequence = sequences_[found->second];
  summary_.ended += sequence.has_ended ? 0 : 1;
  sequence.has_ended = true;
  sequence.ended = ended.stamp.time;
  sequence.outcome = ended.outcome;
  sequence.generated_tokens = ended.generated_tokens;
  sequence.pages_verified = ended.pages_verified;
}

void BootHistory::Take(Rejected& rejected) {
  ++summary_.rejected;
  const Micros time = rejected.stamp.time;
  // "No worker just now" is no judgement of the request: its sender may try again, under the same id.
  if (rejected.code != error_code::kNoWorker && rejected.code != error_code::kQueueFull && !rejected.request_id.empty()) {
    rejected_.try_emplace(rejected.request_id, rejected.code);
  }
  Report& report = gathered_.report;
  if (!InTime(report.query, time, time)) return;
  const bool named = !rejected.request_id.empty();
  gathered_
      .requests[named ? absl::HashOf(rejected.request_id) : absl::HashOf(summary_.role, summary_.boot, summary_.rejected, "")] |=
      Gathered::kRejected;
  if (!report.query.min_prompt_tokens.has_value() || rejected.prompt_tokens < *report.query.min_prompt_tokens) return;
  if (report.long_prompts.size() >= kMaxLongPrompts) {
    ++report.more_long_prompts;
    return;
  }
  report.long_prompts.push_back({.stamp = rejected.stamp,
                                 .request_id = std::move(rejected.request_id),
                                 .domain = std::move(rejected.domain),
                                 .prompt_tokens = rejected.prompt_tokens,
                                 .max_output = rejected.max_output,
                                 .rejected = true,
                                 .code = std::move(rejected.code)});
}

void BootHistory::Take(Incident& incident) {
  if (const auto found = index_.find(incident.sequence.value()); found != index_.end()) ++sequences_[found->second].incidents;
  if (!InTime(gathered_.report.query, incident.stamp.time, incident.stamp.time)) return;
  if (gathered_.report.incidents.size() + incidents_.size() < kMaxIncidents) {
    incidents_.push_back(std::move(incident));
  } else {
    ++gathered_.report.more_incidents;
  }
}

void BootHistory::Take(Gap& gap) {
  AddMissing({summary_.role, summary_.boot, gap.since, gap.stamp.time, gap.records, "they did not fit the queue of the log"});
}

RequestHash BootHistory::HashOf(const Sequence& sequence) const {
  // Without a name a request is one of its own.
  if (sequence.request_id.empty()) return absl::HashOf(summary_.role, summary_.boot, sequence.id);
  return absl::HashOf(sequence.request_id);
}

void BootHistory::Find(Finding::Kind kind, Micros time, std::string text) {
  AddFinding(gathered_.report, {kind, StampAt(time), std::move(text)});
}

std::string BootHistory::Describe(const Conflict& conflict, std::string_view what) const {
  const Tenure &earlier = conflict.earlier, &later = conflict.later;
  const Sequence &a = sequences_[earlier.sequence], &b = sequences_[later.sequence];
  return absl::StrCat("page ", conflict.page.value(),
                      conflict.pages > 1 ? absl::StrCat(" (and ", conflict.pages - 1, " more)") : "", " ", std::string(what),
                      ": request ", a.request_id, " (sequence ", a.id.value(), ", domain ", domains_[a.domain], ", generation ",
                      earlier.generation.value(), ", from ", FormatTime(earlier.started), " to ",
                      a.has_ended ? FormatTime(a.ended) : "an end that is not in the log", ") and request ", b.request_id,
                      " (sequence ", b.id.value(), ", domain ", domains_[b.domain], ", generation ", later.generation.value(),
                      ", from ", FormatTime(later.started), ")");
}

void BootHistory::FinishConflicts() {
  for (const auto& [key, conflict] : two_owners_) {
    const Sequence& first = sequences_[conflict.earlier.sequence];
    if (first.has_ended && first.ended <= conflict.later.started) continue;
    std::string text = Describe(conflict, "had two owners at once");
    if (conflict.ended_first)
      text += "; in the order of the log the first one had ended: a clock that was set back looks like this";
    if (!first.has_ended && !missing_.empty()) text += "; records of this boot are missing, and the end may be one of them";
    Find(Finding::Kind::kTwoOwners, conflict.later.started, std::move(text));
  }
  for (const auto& [key, conflict] : across_domains_) {
    Find(Finding::Kind::kSharedAcrossDomains, conflict.later.started,
         Describe(conflict, "was shared by two isolation domains, which must never be") +
             "; the second one could read what was computed for the first one's domain");
  }
}

void BootHistory::FinishSequences() {
  Report& report = gathered_.report;
  for (const Sequence& sequence : sequences_) {
    summary_.open += sequence.has_ended ? 0 : 1;
    if (sequence.more_pages > 0) {
      AddMissing({summary_.role, summary_.boot, sequence.started, sequence.has_ended ? sequence.ended : OpenEnd(), 1,
                  absl::StrCat("request ", sequence.request_id, " took ", sequence.more_pages, " more pages that are not named")});
    }
    if (sequence.has_ended && sequence.outcome == Outcome::kIntegrity && sequence.incidents == 0) {
      gathered_.ended_for_integrity.try_emplace(
          HashOf(sequence), Finding{Finding::Kind::kIntegrityNoIncident, StampAt(sequence.ended),
                                    absl::StrCat("request ", sequence.request_id, " (sequence ", sequence.id.value(),
                                                 ") ended for a failed check, and the log has no incident of it")});
    }
    if (!InTime(report.query, sequence.started, sequence.has_ended ? sequence.ended : OpenEnd())) continue;
    const RequestHash hash = HashOf(sequence);
    gathered_.requests[hash] |= Gathered::kStarted;
    if (!incidents_.empty()) on_boot_.insert(hash);
    if (!report.query.min_prompt_tokens.has_value() || sequence.prompt_tokens < *report.query.min_prompt_tokens) continue;
    if (report.long_prompts.size() >= kMaxLongPrompts) {
      ++report.more_long_prompts;
      continue;
    }
    report.long_prompts.push_back({.stamp = StampAt(sequence.started),
                                   .request_id = sequence.request_id,
                                   .domain = domains_[sequence.domain],
                                   .prompt_tokens = sequence.prompt_tokens,
                                   .max_output = sequence.max_output,
                                   .pages = Plus(sequence.pages, sequence.more_pages),
                                   .fate = FateOf(sequence),
                                   .outcome = sequence.outcome});
  }
}

Micros BootHistory::OpenEnd() const { return summary_.died ? summary_.last : kNever; }

Fate BootHistory::FateOf(const Sequence& sequence) const {
  return sequence.has_ended ? Fate::kEnded : summary_.died ? Fate::kDied : Fate::kOpen;
}

Holder BootHistory::HolderOf(const Tenure& tenure) const {
  const Sequence& sequence = sequences_[tenure.sequence];
  return {.sequence = sequence.id,
          .request_id = sequence.request_id,
          .domain = domains_[sequence.domain],
          .generation = tenure.generation,
          .started = tenure.started,
          .ended = sequence.has_ended ? sequence.ended : 0,
          .fate = FateOf(sequence),
          .outcome = sequence.outcome,
          .generated_tokens = sequence.generated_tokens,
          .pages_verified = sequence.pages_verified,
          .own_incident = sequence.incidents > 0};
}

void BootHistory::Finish() {
  summary_.died = gathered_.last_boot[static_cast<size_t>(summary_.role)] > summary_.last;
  if (ends_without_start_ > 0) {
    AddMissing({summary_.role, summary_.boot, 0, summary_.last, 0,
                absl::StrCat(ends_without_start_, " requests ended whose start is not in the log")});
  }
  FinishConflicts();
  FinishSequences();
  const bool has_incidents = !incidents_.empty();
  FinishIncidents();
  for (Missing& missing : missing_) {
    if (!has_incidents && !InTime(gathered_.report.query, missing.from, missing.to)) continue;
    gathered_.report.missing_records = Plus(gathered_.report.missing_records, missing.records);
    gathered_.report.missing.push_back(std::move(missing));
  }
  gathered_.report.records += summary_.records;
  gathered_.report.boots.push_back(std::move(summary_));
}

}  // namespace cofferdam::tenure
