// What a tenure log says: who owned which KV-cache page when, and what its checks found. One record is one line of JSON.
//
// No record has a field for prompt text, token ids or keys. The free strings (`detail`, `action`, `check`) are for words of
// ours; a caller must not put words of a client there.
#ifndef COFFERDAM_TENURE_RECORD_H_
#define COFFERDAM_TENURE_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/strong_id.h"

namespace cofferdam::tenure {

// Microseconds since 1970, of the wall clock.
using Micros = int64_t;
// Drawn at random by each start of a worker: pages and generations mean something within one boot only.
using BootId = StrongId<struct BootIdTag, uint64_t>;

enum class Role : uint8_t { kPrefill, kDecode };
enum class Outcome : uint8_t { kFinished, kCancelled, kFailed, kHandedOver, kIntegrity, kPreempted };

// Limits of a line, for writer and reader. Longer strings are cut by the writer and refused by the reader.
inline constexpr size_t kMaxLineBytes = size_t{1} << 20;
inline constexpr size_t kMaxPagesPerLine = 16384;
inline constexpr size_t kMaxSharers = 16;               // of an incident
inline constexpr size_t kMaxEarlier = 4 * kMaxSharers;  // four generations, each with as many holders
inline constexpr size_t kMaxNameBytes = 256;            // request ids, domains
inline constexpr size_t kMaxWordsBytes = 512;           // everything else

// `Incident::action`, as the report knows them; another text is shown as it stands.
inline constexpr std::string_view kActionEnded = "request ended, page quarantined";
inline constexpr std::string_view kActionQuarantined = "cached page quarantined, not used again";
inline constexpr std::string_view kActionRetired = "page retired, tried again elsewhere";

// Whose record it is. Log::Append fills it in; a time other than 0 stays.
struct Stamp {
  Micros time = 0;
  Role role = Role::kDecode;
  BootId boot{};

  friend bool operator==(const Stamp&, const Stamp&) = default;
};

struct PageTenure {
  PageId page{};
  Generation generation{};

  friend bool operator==(const PageTenure&, const PageTenure&) = default;
};

// The first record of every file.
struct Boot {
  Stamp stamp{};
  uint64_t pages = 0;
  uint64_t page_tokens = 0;
  std::string version{};

  friend bool operator==(const Boot&, const Boot&) = default;
};

// A request took pages. With more than kMaxPagesPerLine of them, or when it takes more later, a sequence has several.
struct Started {
  Stamp stamp{};
  SequenceId sequence{};
  std::string request_id{};
  std::string domain{};
  uint64_t prompt_tokens = 0;
  uint64_t max_output = 0;
  std::vector<PageTenure> pages{};
  uint64_t more_pages = 0;  // that follow in further records; AppendLines adds those that it puts into further lines

  friend bool operator==(const Started&, const Started&) = default;
};

// It let go of all its pages.
struct Ended {
  Stamp stamp{};
  SequenceId sequence{};
  Outcome outcome = Outcome::kFailed;
  uint64_t generated_tokens = 0;
  uint64_t pages_verified = 0;

  friend bool operator==(const Ended&, const Ended&) = default;
};

// Admission refused it: it owned nothing.
struct Rejected {
  Stamp stamp{};
  std::string request_id{};
  std::string domain{};
  uint64_t prompt_tokens = 0;
  uint64_t max_output = 0;
  std::string code{};

  friend bool operator==(const Rejected&, const Rejected&) = default;
};

// A holder of an incident's page, as its worker remembered it. `ended` is 0 when it has not.
struct RememberedTenure {
  PageTenure tenure{};
  SequenceId sequence{};
  std::string request_id{};
  std::string domain{};
  Micros started = 0;
  Micros ended = 0;

  friend bool operator==(const RememberedTenure&, const RememberedTenure&) = default;
};

// A check of a page failed.
struct Incident {
  Stamp stamp{};
  SequenceId sequence{};  // the page's owner
  std::string request_id{};
  std::string domain{};
  std::string check{};  // "tags", "payload", "content", "seal"
  PageId page{};
  Generation expected_generation{};
  Generation found_generation{};
  std::string action{};
  std::string detail{};
  // Both newest first; at most kMaxEarlier and kMaxSharers are written. Of the rest that is known, the record has the number.
  std::vector<RememberedTenure> earlier{};  // of other generations
  uint64_t more_earlier = 0;
  std::vector<RememberedTenure> sharers{};  // others that hold, or held, the page in the expected generation
  uint64_t more_sharers = 0;

  friend bool operator==(const Incident&, const Incident&) = default;
};

// So many records did not fit the queue, the first one at `since`, the last one at the stamp's time.
struct Gap {
  Stamp stamp{};
  Micros since = 0;
  uint64_t records = 0;

  friend bool operator==(const Gap&, const Gap&) = default;
};

using Record = std::variant<Boot, Started, Ended, Rejected, Incident, Gap>;
// In the order of Record's alternatives.
enum class Kind : uint8_t { kBoot, kStarted, kEnded, kRejected, kIncident, kGap };

std::string_view Name(Role role);
std::string_view Name(Outcome outcome);
const Stamp& StampOf(const Record& record);
Stamp& StampOf(Record& record);
// 16 hexadecimal digits, and back: false for anything else.
std::string Hex(BootId boot);
bool FromHex(std::string_view text, BootId& boot);

// Appends the record's line with its newline; a Started of very many pages becomes several lines. Of strings, what is not
// printable ASCII becomes '?'.
void AppendLines(const Record& record, std::string& out);

// A line without its newline, as AppendLines writes it to the byte; anything else is refused, whichever bytes it has.
// Errors: InvalidArgument.
absl::StatusOr<Record> Parse(std::string_view line);

// The kind by the line's first bytes alone. A line that is refused by Parse may have one too. False: Parse refuses the line.
bool KindOf(std::string_view line, Kind& kind);

}  // namespace cofferdam::tenure

#endif  // COFFERDAM_TENURE_RECORD_H_
