#include "tenure/record.h"

#include <algorithm>
#include <array>
#include <span>

#include "absl/strings/str_cat.h"

namespace cofferdam::tenure {
namespace {

constexpr std::array<std::string_view, 6> kKinds = {"boot", "started", "ended", "rejected", "incident", "gap"};
static_assert(kKinds.size() == std::variant_size_v<Record>);
// "[4294967295,18446744073709551615]," is 34 bytes; the other fields of a line are under 16 KiB, escaped.
static_assert(kMaxPagesPerLine * 34 + (size_t{16} << 10) < kMaxLineBytes);
// Of an incident, a holder has two names, escaped, and under 128 bytes of numbers.
static_assert((kMaxEarlier + kMaxSharers) * (4 * kMaxNameBytes + 128) + (size_t{16} << 10) < kMaxLineBytes);

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// What these strings are for is ASCII; anything else would only be a way to confuse a terminal.
std::string Quoted(std::string_view text, size_t limit) {
  std::string quoted = "\"";
  for (const char c : text.substr(0, limit)) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c >= ' ' && c < '\x7f' ? c : '?';
  }
  return quoted += '"';
}

// No clock of ours shows a time before 1970; a line with one would be refused by its reader.
Micros Shown(Micros time) { return std::max<Micros>(time, 0); }

// Writes one line; the fields come in the order of the calls.
class Line {
 public:
  Line(Kind kind, const Stamp& stamp, std::string& out) : out_(out) {
    absl::StrAppend(&out_, "{\"kind\":\"", View(kKinds[static_cast<size_t>(kind)]), "\",\"time\":", Shown(stamp.time),
                    ",\"role\":\"", View(Name(stamp.role)), "\",\"boot\":\"", Hex(stamp.boot), "\"");
  }
  ~Line() { out_ += "}\n"; }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void Number(std::string_view key, uint64_t value) { absl::StrAppend(&out_, ",\"", View(key), "\":", value); }
  void Text(std::string_view key, std::string_view value, size_t limit) {
    absl::StrAppend(&out_, ",\"", View(key), "\":", Quoted(value, limit));
  }
  void Raw(std::string_view key, std::string_view json) { absl::StrAppend(&out_, ",\"", View(key), "\":", View(json)); }

 private:
  std::string& out_;
};

void Write(const Boot& boot, std::string& out) {
  Line line(Kind::kBoot, boot.stamp, out);
  line.Number("pages", boot.pages);
  line.Number("page_tokens", boot.page_tokens);
  line.Text("version", boot.version, kMaxWordsBytes);
}

void Write(const Started& started, std::string& out) {
  std::span<const PageTenure> left(started.pages);
  do {
    const auto part = left.first(std::min(left.size(), kMaxPagesPerLine));
    left = left.subspan(part.size());
    Line line(Kind::kStarted, started.stamp, out);
    line.Number("sequence", started.sequence.value());
    line.Text("request", started.request_id, kMaxNameBytes);
    line.Text("domain", started.domain, kMaxNameBytes);
    line.Number("prompt_tokens", started.prompt_tokens);
    line.Number("max_output", started.max_output);
    std::string list = "[";
    for (const PageTenure& t : part)
      absl::StrAppend(&list, list.size() > 1 ? "," : "", "[", t.page.value(), ",", t.generation.value(), "]");
    line.Raw("tenures", list += "]");
    line.Number("more_pages", started.more_pages + left.size());
  } while (!left.empty());
}

void Write(const Ended& ended, std::string& out) {
  Line line(Kind::kEnded, ended.stamp, out);
  line.Number("sequence", ended.sequence.value());
  line.Text("outcome", Name(ended.outcome), kMaxWordsBytes);
  line.Number("generated_tokens", ended.generated_tokens);
  line.Number("pages_verified", ended.pages_verified);
}

void Write(const Rejected& rejected, std::string& out) {
  Line line(Kind::kRejected, rejected.stamp, out);
  line.Text("request", rejected.request_id, kMaxNameBytes);
  line.Text("domain", rejected.domain, kMaxNameBytes);
  line.Number("prompt_tokens", rejected.prompt_tokens);
  line.Number("max_output", rejected.max_output);
  line.Text("code", rejected.code, kMaxWordsBytes);
}

std::string ListOf(std::span<const RememberedTenure> tenures) {
  std::string list = "[";
  for (const RememberedTenure& t : tenures) {
    absl::StrAppend(&list, list.size() > 1 ? "," : "", "[", t.tenure.page.value(), ",", t.tenure.generation.value(), ",",
                    t.sequence.value(), ",", Quoted(t.request_id, kMaxNameBytes), ",", Quoted(t.domain, kMaxNameBytes), ",",
                    Shown(t.started), ",", Shown(t.ended), "]");
  }
  return list += "]";
}

void Write(const Incident& incident, std::string& out) {
  Line line(Kind::kIncident, incident.stamp, out);
  line.Number("sequence", incident.sequence.value());
  line.Text("request", incident.request_id, kMaxNameBytes);
  line.Text("domain", incident.domain, kMaxNameBytes);
  line.Text("check", incident.check, kMaxWordsBytes);
  line.Number("page", incident.page.value());
  line.Number("expected", incident.expected_generation.value());
  line.Number("found", incident.found_generation.value());
  line.Text("action", incident.action, kMaxWordsBytes);
  line.Text("detail", incident.detail, kMaxWordsBytes);
  const auto earlier = std::span(incident.earlier).first(std::min(incident.earlier.size(), kMaxEarlier));
  const auto sharers = std::span(incident.sharers).first(std::min(incident.sharers.size(), kMaxSharers));
  line.Raw("earlier", ListOf(earlier));
  // Logs from before pages were shared have none of the rest: what is empty is left out, so that a line has one form.
  const uint64_t more_earlier = incident.more_earlier + (incident.earlier.size() - earlier.size());
  const uint64_t more_sharers = incident.more_sharers + (incident.sharers.size() - sharers.size());
  if (more_earlier > 0) line.Number("more_earlier", more_earlier);
  if (!sharers.empty()) line.Raw("sharers", ListOf(sharers));
  if (more_sharers > 0) line.Number("more_sharers", more_sharers);
}

void Write(const Gap& gap, std::string& out) {
  Line line(Kind::kGap, gap.stamp, out);
  line.Raw("since", std::to_string(Shown(gap.since)));
  line.Number("records", gap.records);
}

}  // namespace

std::string_view Name(Role role) { return role == Role::kPrefill ? "prefill" : "decode"; }

std::string_view Name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kFinished:
      return "finished";
    case Outcome::kCancelled:
      return "cancelled";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kPreempted:
      return "preempted";
    case Outcome::kHandedOver:
      return "handed_over";
    case Outcome::kIntegrity:
      return "integrity";
  }
  return "failed";
}

const Stamp& StampOf(const Record& record) {
  return std::visit([](const auto& r) -> const Stamp& { return r.stamp; }, record);
}
Stamp& StampOf(Record& record) {
  return std::visit([](auto& r) -> Stamp& { return r.stamp; }, record);
}

std::string Hex(BootId boot) { return absl::StrCat(absl::Hex(boot.value(), absl::kZeroPad16)); }

bool FromHex(std::string_view text, BootId& boot) {
  if (text.size() != 16) return false;
  uint64_t value = 0;
  for (const char c : text) {
    if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) return false;
    value = value << 4 | static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  boot = BootId(value);
  return true;
}

void AppendLines(const Record& record, std::string& out) {
  std::visit([&](const auto& r) { Write(r, out); }, record);
}

}  // namespace cofferdam::tenure
