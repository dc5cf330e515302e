// Parse: accepts what AppendLines writes, byte for byte, and nothing else. A general JSON parser would take several times as
// long for the millions of lines of a log, and would have to be told everything that is not a record.
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "tenure/record.h"

namespace cofferdam::tenure {
namespace {

constexpr uint64_t kMaxTime = std::numeric_limits<Micros>::max();

// Takes a line apart from its front. After the first thing that is not as expected, ok() is false and the rest means nothing.
class Taker {
 public:
  explicit Taker(std::string_view line) : rest_(line) {}

  bool ok() const { return ok_; }
  bool AtEnd() const { return rest_.empty(); }
  bool Next(std::string_view text) const { return rest_.starts_with(text); }

  void Skip(std::string_view text) {
    ok_ = ok_ && rest_.starts_with(text);
    if (ok_) rest_.remove_prefix(text.size());
  }

  uint64_t Number(std::string_view key, uint64_t limit = std::numeric_limits<uint64_t>::max()) {
    Skip(key);
    return Number(limit);
  }

  uint64_t Number(uint64_t limit = std::numeric_limits<uint64_t>::max()) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    const auto length = static_cast<size_t>(end - rest_.data());
    ok_ = ok_ && error == std::errc() && value <= limit && (rest_[0] != '0' || length == 1);
    if (ok_) rest_.remove_prefix(length);
    return value;
  }

  std::string Text(std::string_view key, size_t limit) {
    Skip(key);
    return Text(limit);
  }

  // Printable ASCII in quotes; '"' and '\' are escaped, and nothing else is.
  std::string Text(size_t limit) {
    std::string text;
    Skip("\"");
    while (ok_ && !rest_.empty() && rest_[0] != '"') {
      const bool escaped = rest_[0] == '\\';
      const char c = rest_[escaped && rest_.size() > 1 ? 1 : 0];
      ok_ = c >= ' ' && c < '\x7f' && text.size() < limit && (!escaped || (rest_.size() > 1 && (c == '"' || c == '\\')));
      if (!ok_) break;
      text += c;
      rest_.remove_prefix(escaped ? 2 : 1);
    }
    Skip("\"");
    return text;
  }

  // [ELEMENT,ELEMENT,…] with at most `limit` of them.
  template <typename Element>
  void List(size_t limit, Element element) {
    Skip("[");
    for (size_t i = 0; ok_ && !Next("]"); ++i) {
      if (i > 0) Skip(",");
      ok_ = ok_ && i < limit;
      if (ok_) element();
    }
    Skip("]");
  }

  PageTenure Tenure() {
    PageTenure tenure;
    tenure.page = PageId(static_cast<uint32_t>(Number(std::numeric_limits<uint32_t>::max())));
    tenure.generation = Generation(Number(","));
    return tenure;
  }

  void Fail() { ok_ = false; }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

Stamp TakeStamp(Taker& line) {
  Stamp stamp;
  stamp.time = static_cast<Micros>(line.Number(",\"time\":", kMaxTime));
  stamp.role = line.Next(",\"role\":\"prefill\"") ? Role::kPrefill : Role::kDecode;
  line.Skip(stamp.role == Role::kPrefill ? ",\"role\":\"prefill\"" : ",\"role\":\"decode\"");
  if (!FromHex(line.Text(",\"boot\":", 16), stamp.boot)) line.Fail();
  return stamp;
}

void Take(Taker& line, Boot& boot) {
  boot.pages = line.Number(",\"pages\":");
  boot.page_tokens = line.Number(",\"page_tokens\":");
  boot.version = line.Text(",\"version\":", kMaxWordsBytes);
}

void Take(Taker& line, Started& started) {
  started.sequence = SequenceId(line.Number(",\"sequence\":"));
  started.request_id = line.Text(",\"request\":", kMaxNameBytes);
  started.domain = line.Text(",\"domain\":", kMaxNameBytes);
  started.prompt_tokens = line.Number(",\"prompt_tokens\":");
  started.max_output = line.Number(",\"max_output\":");
  line.Skip(",\"tenures\":");
  line.List(kMaxPagesPerLine, [&] {
    line.Skip("[");
    started.pages.push_back(line.Tenure());
    line.Skip("]");
  });
  started.more_pages = line.Number(",\"more_pages\":");
}

void Take(Taker& line, Ended& ended) {
  ended.sequence = SequenceId(line.Number(",\"sequence\":"));
  const std::string outcome = line.Text(",\"outcome\":", kMaxWordsBytes);
  bool known = false;
  for (const Outcome o : {Outcome::kFinished, Outcome::kCancelled, Outcome::kFailed, Outcome::kHandedOver, Outcome::kIntegrity,
                          Outcome::kPreempted}) {
    if (outcome != Name(o)) continue;
    ended.outcome = o;
    known = true;
  }
  if (!known) line.Fail();
  ended.generated_tokens = line.Number(",\"generated_tokens\":");
  ended.pages_verified = line.Number(",\"pages_verified\":");
}

void Take(Taker& line, Rejected& rejected) {
  rejected.request_id = line.Text(",\"request\":", kMaxNameBytes);
  rejected.domain = line.Text(",\"domain\":", kMaxNameBytes);
  rejected.prompt_tokens = line.Number(",\"prompt_tokens\":");
  rejected.max_output = line.Number(",\"max_output\":");
  rejected.code = line.Text(",\"code\":", kMaxWordsBytes);
}

void TakeList(Taker& line, size_t limit, std::vector<RememberedTenure>& tenures) {
  line.List(limit, [&] {
    RememberedTenure& one = tenures.emplace_back();
    line.Skip("[");
    one.tenure = line.Tenure();
    one.sequence = SequenceId(line.Number(","));
    one.request_id = line.Text(",", kMaxNameBytes);
    one.domain = line.Text(",", kMaxNameBytes);
    one.started = static_cast<Micros>(line.Number(",", kMaxTime));
    one.ended = static_cast<Micros>(line.Number(",", kMaxTime));
    line.Skip("]");
  });
}

// A number that the writer leaves out when it is 0.
uint64_t TakeOptionalNumber(Taker& line, std::string_view key) {
  if (!line.Next(key)) return 0;
  const uint64_t number = line.Number(key);
  if (number == 0) line.Fail();
  return number;
}

void Take(Taker& line, Incident& incident) {
  incident.sequence = SequenceId(line.Number(",\"sequence\":"));
  incident.request_id = line.Text(",\"request\":", kMaxNameBytes);
  incident.domain = line.Text(",\"domain\":", kMaxNameBytes);
  incident.check = line.Text(",\"check\":", kMaxWordsBytes);
  incident.page = PageId(static_cast<uint32_t>(line.Number(",\"page\":", std::numeric_limits<uint32_t>::max())));
  incident.expected_generation = Generation(line.Number(",\"expected\":"));
  incident.found_generation = Generation(line.Number(",\"found\":"));
  incident.action = line.Text(",\"action\":", kMaxWordsBytes);
  incident.detail = line.Text(",\"detail\":", kMaxWordsBytes);
  line.Skip(",\"earlier\":");
  TakeList(line, kMaxEarlier, incident.earlier);
  incident.more_earlier = TakeOptionalNumber(line, ",\"more_earlier\":");
  if (constexpr std::string_view kSharers = ",\"sharers\":"; line.Next(kSharers)) {
    line.Skip(kSharers);
    TakeList(line, kMaxSharers, incident.sharers);
    if (incident.sharers.empty()) line.Fail();  // the writer leaves an empty list out
  }
  incident.more_sharers = TakeOptionalNumber(line, ",\"more_sharers\":");
}

void Take(Taker& line, Gap& gap) {
  gap.since = static_cast<Micros>(line.Number(",\"since\":", kMaxTime));
  gap.records = line.Number(",\"records\":");
}

// The kinds by the beginnings of their lines, in the order of Kind.
constexpr std::array<std::string_view, std::variant_size_v<Record>> kBeginnings = {
    "{\"kind\":\"boot\"",     "{\"kind\":\"started\"",  "{\"kind\":\"ended\"",
    "{\"kind\":\"rejected\"", "{\"kind\":\"incident\"", "{\"kind\":\"gap\"",
};

// A record of the type that stands at `kind` in Record.
template <size_t kIndex = 0>
Record EmptyOf(Kind kind) {
  if constexpr (kIndex + 1 < std::variant_size_v<Record>) {
    if (static_cast<size_t>(kind) != kIndex) return EmptyOf<kIndex + 1>(kind);
  }
  return Record(std::in_place_index<kIndex>);
}

}  // namespace

bool KindOf(std::string_view line, Kind& kind) {
  for (size_t i = 0; i < kBeginnings.size(); ++i) {
    if (!line.starts_with(kBeginnings[i])) continue;
    kind = static_cast<Kind>(i);
    return true;
  }
  return false;
}

absl::StatusOr<Record> Parse(std::string_view line) {
  Kind kind{};
  if (line.size() > kMaxLineBytes) return absl::InvalidArgumentError("the line is too long");
  if (!KindOf(line, kind)) return absl::InvalidArgumentError("the line does not begin with a kind that is known");
  Taker taker(line.substr(kBeginnings[static_cast<size_t>(kind)].size()));
  Record record = EmptyOf(kind);
  StampOf(record) = TakeStamp(taker);
  std::visit([&](auto& r) { Take(taker, r); }, record);
  taker.Skip("}");
  if (!taker.ok() || !taker.AtEnd()) return absl::InvalidArgumentError("the line is not a record as a tenure log writes it");
  return record;
}

}  // namespace cofferdam::tenure
