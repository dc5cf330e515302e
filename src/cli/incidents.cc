#include "cli/incidents.h"

#include <cstdio>
#include <optional>
#include <string>

#include "cli/supervisor.h"
#include "tenure/folder.h"
#include "tenure/report.h"
#include "tenure/time.h"

namespace cofferdam::cli {
namespace {

int Refuse(const absl::Status& status) {
  std::fprintf(stderr, "cofferdam incidents: %s\n", std::string(status.message()).c_str());
  return absl::IsUnavailable(status) ? 1 : kExitRefused;
}

absl::Status ReadTime(const std::string& text, tenure::Micros now, std::optional<tenure::Micros>& time) {
  if (text.empty()) return absl::OkStatus();
  const auto parsed = tenure::ParseTime(text, now);
  if (parsed.ok()) time = *parsed;
  return parsed.status();
}

}  // namespace

void AddIncidentOptions(CLI::App& app, IncidentFlags& flags) {
  app.add_option("--log", flags.log, "Folder of the tenure logs (default: cofferdam in XDG_STATE_HOME, else in ~/.local/state)");
  app.add_option("--since", flags.since,
                 "From when: 2026-11-30T12:00:00Z, 2026-11-30, or 90m, 24h, 7d ago (default: the beginning)");
  app.add_option("--until", flags.until, "Until when, in the same forms (default: now)");
  app.add_option("--min-prompt", flags.min_prompt, "List requests with a prompt of at least so many tokens, admitted or rejected")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  app.add_flag("--json", flags.json, "One JSON object, with all lists in full");
}

int RunIncidents(const IncidentFlags& flags) {
  tenure::Query query{.folder = flags.log};
  if (query.folder.empty()) {
    auto folder = tenure::DefaultFolder();
    if (!folder.ok()) return Refuse(folder.status());
    query.folder = *std::move(folder);
  }
  const tenure::Micros now = tenure::WallClock();
  if (absl::Status status = ReadTime(flags.since, now, query.since); !status.ok()) return Refuse(status);
  if (absl::Status status = ReadTime(flags.until, now, query.until); !status.ok()) return Refuse(status);
  if (query.since.has_value() && query.until.has_value() && *query.since > *query.until) {
    return Refuse(absl::InvalidArgumentError("--since is later than --until"));
  }
  if (flags.min_prompt > 0) query.min_prompt_tokens = flags.min_prompt;
  const auto report = tenure::Make(query);
  if (!report.ok()) return Refuse(report.status());
  const std::string text = flags.json ? RenderJson(*report) : Render(*report);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return Refuse(absl::UnavailableError("the report cannot be written"));
  }
  return report->clear() ? 0 : kExitFound;
}

}  // namespace cofferdam::cli
