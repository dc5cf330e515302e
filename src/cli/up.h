// `cofferdam up`: gateway and workers on one machine.
#ifndef COFFERDAM_CLI_UP_H_
#define COFFERDAM_CLI_UP_H_

#include "cli/options.h"

namespace cofferdam::cli {

// Divides the cores between the workers that `flags.mode` asks for, starts and supervises all. Returns the exit code.
int RunUp(const Flags& flags);

}  // namespace cofferdam::cli

#endif  // COFFERDAM_CLI_UP_H_
