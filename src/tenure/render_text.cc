#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tenure/report.h"
#include "tenure/time.h"

namespace cofferdam::tenure {
namespace {

constexpr size_t kShown = 8;  // holders of a list in the text; RenderJson has them all
constexpr Micros kOpenEnd = std::numeric_limits<Micros>::max();

std::string Text(std::string_view view) { return std::string(view); }

std::string Count(uint64_t count, std::string_view what) { return absl::StrCat(count, " ", Text(what), count == 1 ? "" : "s"); }

std::string RequestText(std::string_view id, std::string_view domain, SequenceId sequence) {
  return absl::StrCat(id.empty() ? "without an id" : Text(id), " domain ", domain.empty() ? "-" : Text(domain), " (sequence ",
                      sequence.value(), ")");
}

std::string EndText(const Holder& holder) {
  if (holder.from_incident) return holder.ended != 0 ? absl::StrCat("to ", FormatTime(holder.ended)) : "no end known";
  if (holder.fate != Fate::kEnded) return Text(Name(holder.fate));
  return absl::StrCat("to ", FormatTime(holder.ended), ", ", Text(Name(holder.outcome)));
}

// How a holder stands to the incident.
std::string RelationText(const Holder& holder) {
  std::string text;
  if (holder.shared) {
    text = ", held the generation of the incident";
    if (!holder.from_incident) text += holder.overlaps ? " at the same time as its request" : " at another time than its request";
    if (holder.checks_passed) text += ", its own checks passed";
  } else if (holder.overlaps) {
    text = ", while the generation of the incident was held";
  }
  return absl::StrCat(text, holder.own_incident ? ", with an incident of its own" : "",
                      holder.tag_was_found && !holder.shared ? ", whose tag was found in the page" : "",
                      holder.from_incident ? ", known from the incident's record alone" : "");
}

void AppendHolders(const Holders& holders, std::string& out) {
  const size_t shown = std::min(holders.listed.size(), kShown);
  for (size_t i = 0; i < shown; ++i) {
    const Holder& holder = holders.listed[i];
    absl::StrAppend(&out, "      generation ", holder.generation.value(), ": request ",
                    RequestText(holder.request_id, holder.domain, holder.sequence), ", ", FormatTime(holder.started), " ",
                    EndText(holder), RelationText(holder), "\n");
  }
  const uint64_t more = holders.listed.size() - shown + holders.more;
  if (more > 0)
    absl::StrAppend(&out, "      and ", more, " more", holders.listed.size() > shown ? " (--json lists them)" : "", "\n");
}

std::string OwnerText(const IncidentReport& report) {
  const Incident& incident = report.incident;
  const bool is_named = incident.sequence != SequenceId();
  std::string text = is_named ? absl::StrCat("request ", RequestText(incident.request_id, incident.domain, incident.sequence))
                              : "no request is named as the page's owner";
  if (incident.action == kActionEnded) {
    text += ": ended before a token was sampled from the page";
  } else if (incident.action == kActionRetired) {
    text += ": the page was given up before it was used";
  }
  if (!report.owner.has_value()) return is_named ? text + "; its start is not in the log" : text;
  if (report.owner->fate != Fate::kEnded) return absl::StrCat(text, "; ", Text(Name(report.owner->fate)));
  absl::StrAppend(&text, "; outcome ", Text(Name(report.owner->outcome)));
  if (report.owner->generated_tokens > 0) {
    absl::StrAppend(&text, ", ", Count(report.owner->generated_tokens, "token"), " in all");
    if (incident.action == kActionEnded) text += ", of steps before it, whose checks had passed";
  }
  return text;
}

void AppendRuledOut(const Report& report, const IncidentReport& incident, std::string& out) {
  const std::string remark = report.incomplete() ? " (only as far as the log goes: see what is missing)" : "";
  const auto line = [&](uint64_t count, std::string_view why) {
    absl::StrAppend(&out, "      ", Count(count, "request"), " ", Text(why), remark, "\n");
  };
  out += "    ruled out, of the requests in the time asked for:\n";
  line(incident.ruled_out.never_held, "of this worker: never held the page, so no step of theirs could read it");
  line(incident.ruled_out.elsewhere, "of other boots or of the other role: in other memory");
  line(incident.ruled_out.rejected, "that admission rejected: owned no page");
}

void AppendIncident(const Report& report, size_t index, std::string& out) {
  const IncidentReport& at = report.incidents[index];
  const Incident& incident = at.incident;
  absl::StrAppend(&out, "\n", index + 1, ". ", FormatTime(incident.stamp.time), " ", Text(Name(incident.stamp.role)), " boot ",
                  Hex(incident.stamp.boot), ": check \"", incident.check, "\" failed on page ", incident.page.value(), "\n");
  absl::StrAppend(&out, "    generation ", incident.expected_generation.value(), " was expected, ",
                  incident.found_generation.value(), " was found; ", incident.action, "\n");
  if (!incident.detail.empty()) absl::StrAppend(&out, "    ", incident.detail, "\n");
  absl::StrAppend(&out, "    ", OwnerText(at), "\n");
  if (at.content.listed.empty()) {
    out += "    the page had no earlier owner in this boot\n";
  } else {
    out += "    what may have been in the page: content of its earlier owners, newest first\n";
  }
  AppendHolders(at.content, out);
  if (at.exposed.listed.empty()) {
    out +=
        "    could be affected: no other request (none shared the generation, or held the page later or at the same time without "
        "passing all checks)\n";
  } else {
    out +=
        "    could be affected: shared the generation, or held the page later or at the same time and not all their checks are "
        "known to have passed\n";
  }
  AppendHolders(at.exposed, out);
  if (report.incomplete() && incident.more_sharers + incident.more_earlier > 0) {
    absl::StrAppend(&out, "    holders whom the worker knew and its record of the incident does not name: ", incident.more_sharers,
                    " who shared the generation, ", incident.more_earlier,
                    " earlier ones; what is missing in the log may be theirs\n");
  }
  if (!at.passed.listed.empty()) out += "    held the page later or at the same time, all their checks passed\n";
  AppendHolders(at.passed, out);
  AppendRuledOut(report, at, out);
}

void AppendMissing(const Report& report, std::string& out) {
  if (!report.incomplete()) return;
  const bool unknown = std::ranges::any_of(report.missing, [](const Missing& m) { return m.records == 0; });
  const uint64_t known = report.missing_records;
  absl::StrAppend(
      &out, "\nincomplete: ",
      unknown && known == 0 ? "an unknown number of records" : absl::StrCat(unknown ? "at least " : "", Count(known, "record")),
      known == 1 && !unknown ? " is missing" : " are missing", "\n");
  for (const Missing& missing : report.missing) {
    absl::StrAppend(&out, "  ", Text(Name(missing.role)), " boot ", Hex(missing.boot), ", ",
                    missing.from == 0 ? "from the beginning" : FormatTime(missing.from), " to ",
                    missing.to == kOpenEnd ? "the end" : FormatTime(missing.to), ": ",
                    missing.records > 0 ? absl::StrCat(Count(missing.records, "record"), ", ") : "", missing.why, "\n");
  }
}

void AppendBoots(const Report& report, std::string& out) {
  out += "\nboots:\n";
  for (const BootSummary& boot : report.boots) {
    absl::StrAppend(&out, "  ", Text(Name(boot.role)), " ", Hex(boot.boot), " version ", boot.version.empty() ? "-" : boot.version,
                    ", ", boot.pages, " pages of ", boot.page_tokens, " tokens, ", FormatTime(boot.first), " to ",
                    FormatTime(boot.last), ": ", Count(boot.started, "request"), " took pages, ", boot.ended, " ended, ",
                    boot.rejected, " rejected");
    if (boot.open > 0) {
      absl::StrAppend(&out, "; ", boot.open, " without an end: ",
                      boot.died ? "the worker died (another boot began after its last record)" : Text(Name(Fate::kOpen)));
    }
    out += "\n";
  }
}

void AppendLongPrompts(const Report& report, std::string& out) {
  if (!report.query.min_prompt_tokens.has_value()) return;
  absl::StrAppend(&out, "\n", Count(report.long_prompts.size() + report.more_long_prompts, "time"), " a prompt of at least ",
                  *report.query.min_prompt_tokens, " tokens was admitted or rejected\n");
  for (const LongPrompt& prompt : report.long_prompts) {
    absl::StrAppend(&out, "  ", FormatTime(prompt.stamp.time), " ", Text(Name(prompt.stamp.role)), " ", Hex(prompt.stamp.boot),
                    " request ", prompt.request_id.empty() ? "without an id" : prompt.request_id, " domain ", prompt.domain, ": ",
                    Count(prompt.prompt_tokens, "token"), ", ", Count(prompt.pages, "page"), ", ");
    if (prompt.rejected) {
      absl::StrAppend(&out, "rejected (", prompt.code, ")\n");
    } else {
      absl::StrAppend(&out, "served, ", Text(prompt.fate == Fate::kEnded ? Name(prompt.outcome) : Name(prompt.fate)), "\n");
    }
  }
  if (report.more_long_prompts > 0) absl::StrAppend(&out, "  and ", report.more_long_prompts, " more\n");
}

void AppendFindings(const Report& report, std::string& out) {
  const uint64_t count = report.findings.size() + report.more_findings;
  absl::StrAppend(&out, "\n", Count(count, "finding"), count == 0 ? ": the log contradicts no rule" : ": what must not be in a log",
                  "\n");
  for (const Finding& finding : report.findings) {
    absl::StrAppend(&out, "  ", FormatTime(finding.stamp.time), " ", Text(Name(finding.stamp.role)), " boot ",
                    Hex(finding.stamp.boot), ": ", finding.text, "\n");
  }
  if (report.more_findings > 0) absl::StrAppend(&out, "  and ", report.more_findings, " more\n");
}

}  // namespace

std::string Render(const Report& report) {
  std::string out = absl::StrCat("tenure log in ", report.query.folder, ", from ",
                                 report.query.since.has_value() ? FormatTime(*report.query.since) : "the beginning", " to ",
                                 report.query.until.has_value() ? FormatTime(*report.query.until) : "the end", "\n",
                                 Count(report.files, "file"), ", ", Count(report.records, "record"), ", ",
                                 Count(report.bad_lines, "bad line"), ", ", Count(report.requests, "request"), " in that time\n");
  if (report.cut_off_lines > 0) {
    absl::StrAppend(&out, Count(report.cut_off_lines, "line"),
                    " cut off at the end of a file: normal after a crash, which may have lost the last moments of its boot\n");
  }
  for (const std::string& file : report.unreadable) absl::StrAppend(&out, "cannot be read: ", file, "\n");
  AppendMissing(report, out);
  AppendBoots(report, out);
  absl::StrAppend(&out, "\n", Count(report.incidents.size() + report.more_incidents, "incident"), "\n");
  for (size_t i = 0; i < report.incidents.size(); ++i) AppendIncident(report, i, out);
  if (report.more_incidents > 0) absl::StrAppend(&out, "\nand ", report.more_incidents, " more incidents\n");
  AppendFindings(report, out);
  AppendLongPrompts(report, out);
  return out;
}

}  // namespace cofferdam::tenure
