// What a tenure log says of incidents: what happened, whose content could have been seen, by whom, and who is ruled out.
// Everything comes from the log; nothing asks a running worker.
#ifndef COFFERDAM_TENURE_REPORT_H_
#define COFFERDAM_TENURE_REPORT_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tenure/folder.h"
#include "tenure/record.h"

namespace cofferdam::tenure {

// Lists of a report end there, and a count says how many more there were.
inline constexpr size_t kMaxIncidents = 1000;
inline constexpr size_t kMaxFindings = 1000;
inline constexpr size_t kMaxLongPrompts = 100'000;
inline constexpr size_t kMaxHolders = 1000;  // of each list of an incident

struct Query {
  std::string folder{};
  std::optional<Micros> since{}, until{};  // both inclusive
  std::optional<uint64_t> min_prompt_tokens{};
};

// What became of a request that took pages.
enum class Fate : uint8_t {
  kEnded,
  kOpen,  // no end in the log: it still runs, or the worker died
  kDied,  // no end, and after the boot's last record another boot of the role began
};

// One tenure of an incident's page.
struct Holder {
  SequenceId sequence{};
  std::string request_id{};
  std::string domain{};
  Generation generation{};
  Micros started = 0;
  Micros ended = 0;  // 0: no end is known
  Fate fate = Fate::kOpen;
  Outcome outcome = Outcome::kFailed;  // when it ended
  uint64_t generated_tokens = 0;
  uint64_t pages_verified = 0;
  bool own_incident = false;   // a check of its own failed, on whichever page
  bool tag_was_found = false;  // the generation that the check found is this one's
  bool shared = false;         // it held the page in the incident's own generation
  bool overlaps = false;       // held it while the incident's request did; of another generation: or one who shared it with that
  bool checks_passed = false;  // its own, all of them
  bool from_incident = false;  // known from the incident's record alone: nothing is known of its outcome
};

struct Holders {
  std::vector<Holder> listed{};
  uint64_t more = 0;
};

// Requests in the time asked for, by why they can have nothing to do with an incident.
struct RuledOut {
  uint64_t never_held = 0;  // on the same worker, in other pages
  uint64_t elsewhere = 0;   // in the memory of another boot or role
  uint64_t rejected = 0;    // owned no page at all
};

struct IncidentReport {
  Incident incident{};
  std::optional<Holder> owner{};  // none: its Started is not in the log
  Holders content{};              // earlier tenures of the page, newest first: what may have been in it
  // All who shared the generation, at any time; and who held the page later or at the same time, and not every check of theirs is
  // known to have passed.
  Holders exposed{};
  Holders passed{};  // held it later or at the same time, and all their checks passed
  RuledOut ruled_out{};
};

// Something that must not be in a log, beside what the checks found.
struct Finding {
  enum class Kind : uint8_t {
    kTwoOwners,            // a page was given out again while somebody held it in an earlier generation (I2)
    kSharedAcrossDomains,  // sequences of two isolation domains had a page in one generation (I10)
    kGenerationBackwards,  // a page was given out with a generation that is not newer than the one before (I2)
    kRejectedThenStarted,  // a rejected request took pages (I1)
    kSequenceReused,       // a sequence took pages after its end
    kOwnerFinished,        // the request of an incident should have been ended and finished
    kIntegrityNoIncident,  // a request ended for a failed check of which there is no record
  };
  Kind kind = Kind::kTwoOwners;
  Stamp stamp{};
  std::string text{};  // a sentence with all it is about
};

// Something that the log lacks.
struct Missing {
  Role role = Role::kDecode;
  BootId boot{};
  Micros from = 0, to = std::numeric_limits<Micros>::max();
  uint64_t records = 0;  // 0: nobody knows
  std::string why{};
};

struct LongPrompt {
  Stamp stamp{};
  std::string request_id{};
  std::string domain{};
  uint64_t prompt_tokens = 0;
  uint64_t max_output = 0;
  bool rejected = false;
  std::string code{};  // of the rejection
  uint64_t pages = 0;  // 0 when rejected
  Fate fate = Fate::kOpen;
  Outcome outcome = Outcome::kFailed;
};

struct BootSummary {
  Role role = Role::kDecode;
  BootId boot{};
  Micros first = 0, last = 0;  // records
  uint64_t pages = 0, page_tokens = 0;
  std::string version{};
  uint64_t records = 0, started = 0, ended = 0, rejected = 0;
  uint64_t open = 0;  // started without an end
  bool died = false;  // another boot of the role began after its last record
};

struct Report {
  Query query;
  uint64_t files = 0, records = 0, bad_lines = 0, cut_off_lines = 0;
  uint64_t requests = 0;  // in the time asked for, by request id
  std::vector<std::string> unreadable{};
  // What is missing in the time asked for, or in a boot with one of the incidents.
  std::vector<Missing> missing{};
  uint64_t missing_records = 0;  // known ones
  std::vector<BootSummary> boots{};
  std::vector<IncidentReport> incidents{};  // by time, as findings and long prompts
  std::vector<Finding> findings{};
  std::vector<LongPrompt> long_prompts{};
  uint64_t more_incidents = 0, more_findings = 0, more_long_prompts = 0;

  bool incomplete() const { return !missing.empty(); }
  bool clear() const { return incidents.empty() && findings.empty(); }
};

// Reads the folder twice, as much of each file as was there at first; a log that is being written may be read. Errors: NotFound
// when there is no folder or no log in it, Unavailable when the folder cannot be read.
absl::StatusOr<Report> Make(const Query& query);

std::string_view Name(Fate fate);
std::string_view Name(Finding::Kind kind);

// Text for an operator, and one JSON object; both end with a newline. What comes from the log is printable ASCII.
std::string Render(const Report& report);
std::string RenderJson(const Report& report);

}  // namespace cofferdam::tenure

#endif  // COFFERDAM_TENURE_REPORT_H_
