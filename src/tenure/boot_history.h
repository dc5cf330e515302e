// One boot of one worker, as its log tells it: its requests, who owned its pages when, and what of that must not be.
#ifndef COFFERDAM_TENURE_BOOT_HISTORY_H_
#define COFFERDAM_TENURE_BOOT_HISTORY_H_

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "tenure/report.h"

namespace cofferdam::tenure {

// A request by the hash of its id: there may be millions, and the report only counts them.
using RequestHash = uint64_t;

// What the report knows before it reads a boot, and what it gathers over all of them.
struct Gathered {
  static constexpr uint8_t kStarted = 1, kRejected = 2;

  Report report;
  absl::flat_hash_map<RequestHash, uint8_t> requests;             // in the time asked for, with what became of them
  absl::flat_hash_set<RequestHash> requests_of_incidents;         // at any time, of any role
  std::array<Micros, 2> last_boot{};                              // when the last boot of each Role began
  absl::flat_hash_map<RequestHash, Finding> ended_for_integrity;  // and no incident of that sequence

  // Where the boots' answers lie, to be finished when all are read.
  struct Touched {
    absl::flat_hash_set<RequestHash> holders;                   // of the page, at any time
    const absl::flat_hash_set<RequestHash>* on_boot = nullptr;  // in the time asked for
  };
  std::vector<Touched> touched;                           // for each incident of the report
  std::deque<absl::flat_hash_set<RequestHash>> on_boots;  // of boots with incidents
};

bool InTime(const Query& query, Micros from, Micros to);
void AddFinding(Report& report, Finding finding);

// Takes a boot's records in the order of its log. Keeps a page's whole history only for the pages of incidents.
class BootHistory {
 public:
  // `gathered` outlives this. `pages` are those of incidents in the time asked for.
  BootHistory(Role role, BootId boot, absl::flat_hash_set<uint32_t> pages, Gathered& gathered);

  void Add(Record record);
  // A part of the log is not there.
  void AddMissing(Missing missing) { missing_.push_back(std::move(missing)); }
  // After the last record: adds this boot to `gathered`.
  void Finish();

  Micros last() const { return summary_.last; }
  uint64_t records() const { return summary_.records; }

 private:
  // What is kept of each request that took pages.
  struct Sequence {
    SequenceId id;
    std::string request_id;
    uint32_t domain = 0;  // an index into domains_
    bool has_ended = false, rejected_before = false;
    Outcome outcome = Outcome::kFailed;
    uint32_t incidents = 0;
    uint64_t prompt_tokens = 0, max_output = 0, pages = 0, more_pages = 0;
    Micros started = 0, ended = 0;
    uint64_t generated_tokens = 0, pages_verified = 0;
  };
  struct Tenure {
    uint32_t sequence = 0;  // an index into sequences_
    Generation generation;
    Micros started = 0;
  };
  // A page in its last generation. Sequences of one isolation domain may share it, and when all have ended it may stay cached
  // for the next one.
  struct Occupancy {
    Tenure first;
    // By sequence, with the time from which it held the page. Of those that have ended, only the last one to end matters.
    absl::flat_hash_map<uint32_t, Micros> holders;
    size_t sweep_at = kSweepAt;  // so many holders: the others that have ended are taken out
  };
  // Two sequences, and pages that both held though they must not.
  struct Conflict {
    PageId page;  // the first of them
    Tenure earlier, later;
    bool ended_first = false;  // in the order of the log
    uint64_t pages = 0;
  };
  using Conflicts = absl::flat_hash_map<std::pair<uint32_t, uint32_t>, Conflict>;  // by their two sequences
  static constexpr size_t kSweepAt = 16;

  void Take(Boot& boot);
  void Take(Started& started);
  void Take(Ended& ended);
  void Take(Rejected& rejected);
  void Take(Incident& incident);
  void Take(Gap& gap);

  uint32_t IndexOf(Started& started);
  void TakePage(uint32_t index, const PageTenure& tenure, Micros time);
  // False: the sequence holds it already.
  bool Share(Occupancy& occupancy, const Tenure& tenure, PageId page);
  void TakeOver(const Occupancy& before, const Tenure& tenure, PageId page);
  void Sweep(Occupancy& occupancy) const;
  void Note(Conflicts& conflicts, const Tenure& earlier, const Tenure& later, PageId page);
  RequestHash HashOf(const Sequence& sequence) const;
  Stamp StampAt(Micros time) const { return {time, summary_.role, summary_.boot}; }
  // When a request without an end let go of its pages at the latest.
  Micros OpenEnd() const;
  Fate FateOf(const Sequence& sequence) const;
  std::string Describe(const Conflict& conflict, std::string_view what) const;
  void FinishConflicts();
  void FinishSequences();
  void FinishIncidents();
  void FindRememberedDomains(const IncidentReport& report);
  IncidentReport Judge(Incident incident) const;
  void ListSharers(std::span<const Tenure> sharers, const Holder& owner, bool at_once, IncidentReport& report) const;
  void AddRemembered(std::span<const Tenure> tenures, IncidentReport& report) const;
  Holder HolderOf(const Tenure& tenure) const;
  void Find(Finding::Kind kind, Micros time, std::string text);

  const absl::flat_hash_set<uint32_t> incident_pages_;
  Gathered& gathered_;
  BootSummary summary_;
  std::vector<Missing> missing_;
  std::vector<Incident> incidents_;
  std::deque<Sequence> sequences_;
  absl::flat_hash_map<uint64_t, uint32_t> index_;                 // by sequence id
  absl::flat_hash_map<uint32_t, Occupancy> occupancies_;          // by page
  absl::flat_hash_map<uint32_t, std::vector<Tenure>> histories_;  // of incident_pages_
  Conflicts two_owners_, across_domains_;
  absl::flat_hash_map<std::string, std::string> rejected_;  // request ids, with the codes
  absl::flat_hash_map<std::string, uint32_t> domain_index_;
  std::deque<std::string> domains_;
  absl::flat_hash_set<RequestHash> on_boot_;
  uint64_t ends_without_start_ = 0;
};

}  // namespace cofferdam::tenure

#endif  // COFFERDAM_TENURE_BOOT_HISTORY_H_
