#include "faults/kinds.h"

namespace cofferdam::faults {

std::string_view ToString(FaultKind kind) {
  constexpr std::string_view kNames[kFaultKinds] = {"page overwritten by another's",
                                                    "two pages swapped",
                                                    "stale page",
                                                    "write over a page's edge",
                                                    "bit of a tag",
                                                    "bit of a sealed page",
                                                    "bit of a page that fills",
                                                    "arrival: bit",
                                                    "arrival: torn copy",
                                                    "arrival: swapped pages",
                                                    "arrival: another prompt's page",
                                                    "arrival: another's bytes"};
  return kNames[static_cast<size_t>(kind)];
}

bool MustCatch(FaultKind kind, engine::VerifyReads::Mode mode) {
  if (kind == FaultKind::kFillingFlip) return false;
  return kind != FaultKind::kSealedFlip || mode == engine::VerifyReads::Mode::kFull;
}

}  // namespace cofferdam::faults
