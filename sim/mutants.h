// Rules left out of the code, by the switches of base/faults.h: what must be found, and what another layer covers.
#ifndef COFFERDAM_SIM_MUTANTS_H_
#define COFFERDAM_SIM_MUTANTS_H_

#include <span>
#include <string_view>
#include <vector>

#include "base/faults.h"

namespace cofferdam::sim {

struct Mutant {
  std::string_view name;
  std::vector<Fault> switches;
  // False: other layers cover for what is left out. They may fail requests, or end the process, but no answer is wrong.
  bool found = true;
};

std::span<const Mutant> Mutants();
// Null: there is none.
const Mutant* MutantNamed(std::string_view name);
// Turns its switches on and all others off. Null: all are off.
void Switch(const Mutant* mutant);

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_MUTANTS_H_
