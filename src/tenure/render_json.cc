#include <limits>
#include <nlohmann/json.hpp>

#include "tenure/report.h"
#include "tenure/time.h"

namespace cofferdam::tenure {
namespace {

using Json = nlohmann::ordered_json;

Json TimeOrNull(Micros time, Micros none) { return time == none ? Json(nullptr) : Json(FormatTime(time)); }

Json OptionalTime(const std::optional<Micros>& time) { return time.has_value() ? Json(FormatTime(*time)) : Json(nullptr); }

Json ToJson(const Holder& holder) {
  return {{"sequence", holder.sequence.value()},
          {"request", holder.request_id},
          {"domain", holder.domain},
          {"generation", holder.generation.value()},
          {"started", FormatTime(holder.started)},
          {"ended", TimeOrNull(holder.ended, 0)},
          {"fate", Name(holder.fate)},
          {"outcome", holder.fate == Fate::kEnded && !holder.from_incident ? Json(Name(holder.outcome)) : Json(nullptr)},
          {"generated_tokens", holder.generated_tokens},
          {"pages_verified", holder.pages_verified},
          {"own_incident", holder.own_incident},
          {"tag_was_found", holder.tag_was_found},
          {"shared_generation", holder.shared},
          {"overlaps", holder.overlaps},
          {"checks_passed", holder.checks_passed},
          {"from_incident_record", holder.from_incident}};
}

Json ToJson(const Holders& holders) {
  Json list = Json::array();
  for (const Holder& holder : holders.listed) list.push_back(ToJson(holder));
  return {{"listed", list}, {"more", holders.more}};
}

Json ToJson(const IncidentReport& report, bool incomplete) {
  const Incident& incident = report.incident;
  return {{"time", FormatTime(incident.stamp.time)},
          {"role", Name(incident.stamp.role)},
          {"boot", Hex(incident.stamp.boot)},
          {"sequence", incident.sequence.value()},
          {"request", incident.request_id},
          {"domain", incident.domain},
          {"check", incident.check},
          {"page", incident.page.value()},
          {"expected_generation", incident.expected_generation.value()},
          {"found_generation", incident.found_generation.value()},
          {"action", incident.action},
          {"detail", incident.detail},
          {"owner", report.owner.has_value() ? ToJson(*report.owner) : Json(nullptr)},
          {"content_may_be_of", ToJson(report.content)},
          {"record_left_off", {{"earlier", incident.more_earlier}, {"sharers", incident.more_sharers}}},
          {"could_be_affected", ToJson(report.exposed)},
          {"held_it_and_passed", ToJson(report.passed)},
          {"ruled_out",
           {{"never_held_the_page", report.ruled_out.never_held},
            {"other_memory", report.ruled_out.elsewhere},
            {"rejected_owned_nothing", report.ruled_out.rejected},
            {"only_as_far_as_the_log_goes", incomplete}}}};
}

Json ToJson(const Finding& finding) {
  return {{"kind", Name(finding.kind)},
          {"time", FormatTime(finding.stamp.time)},
          {"role", Name(finding.stamp.role)},
          {"boot", Hex(finding.stamp.boot)},
          {"text", finding.text}};
}

Json ToJson(const Missing& missing) {
  return {{"role", Name(missing.role)},
          {"boot", Hex(missing.boot)},
          {"from", TimeOrNull(missing.from, 0)},
          {"to", TimeOrNull(missing.to, std::numeric_limits<Micros>::max())},
          {"records", missing.records > 0 ? Json(missing.records) : Json(nullptr)},
          {"why", missing.why}};
}

Json ToJson(const LongPrompt& prompt) {
  Json json = {{"time", FormatTime(prompt.stamp.time)}, {"role", Name(prompt.stamp.role)}, {"boot", Hex(prompt.stamp.boot)},
               {"request", prompt.request_id},          {"domain", prompt.domain},         {"prompt_tokens", prompt.prompt_tokens},
               {"max_output", prompt.max_output},       {"rejected", prompt.rejected},     {"pages", prompt.pages}};
  if (prompt.rejected) {
    json["code"] = prompt.code;
  } else {
    json["fate"] = Name(prompt.fate);
    json["outcome"] = prompt.fate == Fate::kEnded ? Json(Name(prompt.outcome)) : Json(nullptr);
  }
  return json;
}

Json ToJson(const BootSummary& boot) {
  return {{"role", Name(boot.role)}, {"boot", Hex(boot.boot)}, {"first", FormatTime(boot.first)}, {"last", FormatTime(boot.last)},
          {"version", boot.version}, {"pages", boot.pages},    {"page_tokens", boot.page_tokens}, {"records", boot.records},
          {"started", boot.started}, {"ended", boot.ended},    {"rejected", boot.rejected},       {"without_end", boot.open},
          {"over", boot.died}};
}

template <typename T>
Json List(const std::vector<T>& items) {
  Json list = Json::array();
  for (const T& item : items) list.push_back(ToJson(item));
  return list;
}

}  // namespace

std::string RenderJson(const Report& report) {
  Json incidents = Json::array();
  for (const IncidentReport& incident : report.incidents) incidents.push_back(ToJson(incident, report.incomplete()));
  Json json = {{"folder", report.query.folder},
               {"since", OptionalTime(report.query.since)},
               {"until", OptionalTime(report.query.until)},
               {"files", report.files},
               {"unreadable_files", report.unreadable},
               {"records", report.records},
               {"bad_lines", report.bad_lines},
               {"cut_off_lines", report.cut_off_lines},
               {"requests", report.requests},
               {"incomplete", report.incomplete()},
               {"missing_records", report.missing_records},
               {"missing", List(report.missing)},
               {"boots", List(report.boots)},
               {"incidents", std::move(incidents)},
               {"more_incidents", report.more_incidents},
               {"findings", List(report.findings)},
               {"more_findings", report.more_findings}};
  if (report.query.min_prompt_tokens.has_value()) {
    json["min_prompt_tokens"] = *report.query.min_prompt_tokens;
    json["long_prompts"] = List(report.long_prompts);
    json["more_long_prompts"] = report.more_long_prompts;
  }
  return json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

}  // namespace cofferdam::tenure
