// `cofferdam incidents`: what the tenure logs of this machine's workers say of incidents.
#ifndef COFFERDAM_CLI_INCIDENTS_H_
#define COFFERDAM_CLI_INCIDENTS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace cofferdam::cli {

// An incident, or something that must not be in a log, was found.
inline constexpr int kExitFound = 3;

struct IncidentFlags {
  std::string log;  // empty: tenure::DefaultFolder
  std::string since, until;
  uint64_t min_prompt = 0;  // 0: long prompts are not listed
  bool json = false;
};

void AddIncidentOptions(CLI::App& app, IncidentFlags& flags);

// Prints the report to stdout. Returns 0, kExitFound, or kExitRefused with a message on stderr: a flag is wrong, or there is
// no log; 1 when the folder cannot be read.
int RunIncidents(const IncidentFlags& flags);

}  // namespace cofferdam::cli

#endif  // COFFERDAM_CLI_INCIDENTS_H_
