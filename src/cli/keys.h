// `cofferdam keys`: makes, lists and revokes the API keys of a file that a gateway reads.
#ifndef COFFERDAM_CLI_KEYS_H_
#define COFFERDAM_CLI_KEYS_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "gateway/key_file.h"

namespace cofferdam::cli {

struct KeysFlags {
  std::string file;
  gateway::KeyRecord record{};   // of the key to add
  std::vector<std::string> ids;  // to revoke
  bool json = false;
};

// Adds the subcommands add, list and revoke. `flags` must outlive `app`.
void AddKeysOptions(CLI::App& app, KeysFlags& flags);

// Runs the one that was parsed. A file that changes is replaced as a whole, under a lock, so that a gateway never reads half
// of one and two commands do not undo each other. Returns the exit status.
int RunKeys(const CLI::App& app, KeysFlags flags);

}  // namespace cofferdam::cli

#endif  // COFFERDAM_CLI_KEYS_H_
