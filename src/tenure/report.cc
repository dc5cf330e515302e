#include "tenure/report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tenure/boot_history.h"
#include "tenure/line_reader.h"

namespace cofferdam::tenure {
namespace {

using BootKey = std::pair<Role, BootId>;

// One reading of a folder: first for the pages of incidents, then for the rest.
class Reading {
 public:
  Reading(const Query& query, std::vector<FileId> files) : files_(std::move(files)), sizes_(files_.size()) {
    gathered_.report.query = query;
    gathered_.report.files = files_.size();
  }

  Report Read() {
    for (size_t i = 0; i < files_.size(); ++i) FindIncidents(i);
    for (size_t i = 0; i < files_.size();) i = ReadBoot(i);
    FinishFindings();
    FinishRuledOut();
    FinishOrder();
    gathered_.report.requests = gathered_.requests.size();
    return std::move(gathered_.report);
  }

 private:
  std::string PathOf(size_t i) const { return absl::StrCat(gathered_.report.query.folder, "/", FileName(files_[i])); }

  void FindIncidents(size_t i) {
    LineReader reader(PathOf(i));
    std::string_view line;
    for (LineReader::Result result = reader.Next(line); result != LineReader::Result::kEnd && result != LineReader::Result::kFailed;
         result = reader.Next(line)) {
      Kind kind{};
      if (result != LineReader::Result::kLine || !KindOf(line, kind) || (kind != Kind::kIncident && kind != Kind::kBoot)) continue;
      const auto record = Parse(line);
      if (!record.ok()) continue;
      if (const auto* boot = std::get_if<Boot>(&*record)) {
        Micros& last = gathered_.last_boot[static_cast<size_t>(files_[i].role)];
        last = std::max(last, boot->stamp.time);
        continue;
      }
      const auto& incident = std::get<Incident>(*record);
      if (!incident.request_id.empty()) gathered_.requests_of_incidents.insert(absl::HashOf(incident.request_id));
      if (!InTime(gathered_.report.query, incident.stamp.time, incident.stamp.time)) continue;
      pages_[{files_[i].role, files_[i].boot}].insert(incident.page.value());
    }
    sizes_[i] = reader.bytes();
  }

  // Reads all files of the boot of file `i`; returns the first one behind them.
  size_t ReadBoot(size_t i) {
    const auto [role, boot, first] = files_[i];
    BootHistory history(role, boot, std::move(pages_[{role, boot}]), gathered_);
    uint32_t expected = 1;
    for (; i < files_.size() && files_[i].role == role && files_[i].boot == boot; ++i) {
      if (files_[i].number != expected)
        absent_ = absl::StrCat(files_[i].number - expected, " files before ", FileName(files_[i]), " are gone");
      expected = files_[i].number + 1;
      ReadFile(i, history);
    }
    history.Finish();
    return i;
  }

  void ReadFile(size_t i, BootHistory& history) {
    const FileId& file = files_[i];
    LineReader reader(PathOf(i), sizes_[i]);
    Micros before = history.last();
    uint64_t bad = 0;  // since the last good line
    std::string_view line;
    const auto lose = [&](Micros to, uint64_t records, std::string why) {
      history.AddMissing({file.role, file.boot, before, to, records, std::move(why)});
    };
    LineReader::Result result = reader.Next(line);
    for (; result != LineReader::Result::kEnd && result != LineReader::Result::kFailed; result = reader.Next(line)) {
      if (result == LineReader::Result::kCutOff) {
        ++gathered_.report.cut_off_lines;
        continue;
      }
      auto record = result == LineReader::Result::kLine ? Parse(line) : absl::InvalidArgumentError("too long");
      const Stamp* stamp = record.ok() ? &StampOf(*record) : nullptr;
      if (stamp == nullptr || stamp->role != file.role || stamp->boot != file.boot) {
        ++gathered_.report.bad_lines;
        ++bad;
        continue;
      }
      // Every file begins with the boot's own record, whose time says nothing of the file.
      const Micros time = std::holds_alternative<Boot>(*record) ? before : stamp->time;
      if (!absent_.empty() && !std::holds_alternative<Boot>(*record)) lose(time, 0, std::exchange(absent_, ""));
      if (bad > 0) lose(time, std::exchange(bad, 0), BadLines(file));
      before = std::max(before, time);
      history.Add(*std::move(record));
    }
    constexpr Micros kOpenEnd = std::numeric_limits<Micros>::max();
    if (!absent_.empty()) lose(kOpenEnd, 0, std::exchange(absent_, ""));
    if (bad > 0) lose(kOpenEnd, bad, BadLines(file));
    if (result == LineReader::Result::kFailed) {
      gathered_.report.unreadable.push_back(absl::StrCat(FileName(file), ": ", reader.error()));
      lose(kOpenEnd, 0, absl::StrCat(FileName(file), " cannot be read: ", reader.error()));
    }
  }

  static std::string BadLines(const FileId& file) { return absl::StrCat("lines of ", FileName(file), " cannot be understood"); }

  void FinishFindings() {
    for (auto& [request, finding] : gathered_.ended_for_integrity) {
      // The incident may be the other role's, of the same request.
      if (!gathered_.requests_of_incidents.contains(request)) AddFinding(gathered_.report, std::move(finding));
    }
  }

  void FinishRuledOut() {
    uint64_t rejected = 0;
    for (const auto& [request, what] : gathered_.requests) rejected += what == Gathered::kRejected ? 1 : 0;
    for (size_t i = 0; i < gathered_.touched.size(); ++i) {
      const auto& [holders, on_boot] = gathered_.touched[i];
      RuledOut out{
          .never_held = on_boot->size(), .elsewhere = gathered_.requests.size() - rejected - on_boot->size(), .rejected = rejected};
      for (const RequestHash request : holders) {
        const auto found = gathered_.requests.find(request);
        if (found == gathered_.requests.end()) continue;
        uint64_t& count = on_boot->contains(request)             ? out.never_held
                          : found->second == Gathered::kRejected ? out.rejected
                                                                 : out.elsewhere;
        --count;
      }
      gathered_.report.incidents[i].ruled_out = out;
    }
  }

  void FinishOrder() {
    Report& report = gathered_.report;
    std::ranges::stable_sort(report.incidents, {}, [](const IncidentReport& r) { return r.incident.stamp.time; });
    std::ranges::stable_sort(report.findings, {}, [](const Finding& f) { return std::pair(f.stamp.time, f.text); });
    std::ranges::stable_sort(report.long_prompts, {}, [](const LongPrompt& p) { return p.stamp.time; });
    std::ranges::stable_sort(report.boots, {}, &BootSummary::first);
    std::ranges::stable_sort(report.missing, {}, &Missing::from);
  }

  const std::vector<FileId> files_;
  std::vector<uint64_t> sizes_;  // in bytes, when they were read first
  std::map<BootKey, absl::flat_hash_set<uint32_t>> pages_;
  std::string absent_;  // files that are not there, until the next record says when
  Gathered gathered_;
};

}  // namespace

absl::StatusOr<Report> Make(const Query& query) {
  auto files = ListFiles(query.folder);
  if (!files.ok()) return files.status();
  if (files->empty()) return absl::NotFoundError(absl::StrCat("there is no tenure log in ", query.folder));
  return Reading(query, *std::move(files)).Read();
}

std::string_view Name(Fate fate) {
  return fate == Fate::kEnded ? "ended" : fate == Fate::kOpen ? "still running, or the worker died" : "the worker died";
}

std::string_view Name(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::kTwoOwners:
      return "two_owners";
    case Finding::Kind::kSharedAcrossDomains:
      return "shared_across_domains";
    case Finding::Kind::kGenerationBackwards:
      return "generation_backwards";
    case Finding::Kind::kRejectedThenStarted:
      return "rejected_then_started";
    case Finding::Kind::kSequenceReused:
      return "sequence_reused";
    case Finding::Kind::kOwnerFinished:
      return "owner_finished";
    case Finding::Kind::kIntegrityNoIncident:
      return "integrity_without_incident";
  }
  return "unknown";
}

}  // namespace cofferdam::tenure
