// What the tables of the campaigns call each kind of fault, and what each mode promises of it.
#ifndef COFFERDAM_TESTS_FAULTS_KINDS_H_
#define COFFERDAM_TESTS_FAULTS_KINDS_H_

#include <string_view>

#include "engine/verify.h"
#include "kv/corruption.h"

namespace cofferdam::faults {

using kv::FaultKind;
using kv::kFaultKinds;

std::string_view ToString(FaultKind kind);
// Whether the mode promises that no token comes from such a page.
bool MustCatch(FaultKind kind, engine::VerifyReads::Mode mode);

}  // namespace cofferdam::faults

#endif  // COFFERDAM_TESTS_FAULTS_KINDS_H_
