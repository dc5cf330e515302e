// `cofferdam up`: the three processes on one machine.
#ifndef COFFERDAM_CLI_UP_H_
#define COFFERDAM_CLI_UP_H_

#include "cli/options.h"

namespace cofferdam::cli {

// Divides the cores between the roles, starts and supervises them. Returns the exit code.
int RunUp(const Flags& flags);

}  // namespace cofferdam::cli

#endif  // COFFERDAM_CLI_UP_H_
