// Included before everything in a coverage build. Without optimisation the compiler keeps both branches of a constant condition,
// and what stands behind a fault point can not run outside of a build with COFFERDAM_FAULTS.
#ifndef COFFERDAM_TESTS_COVERAGE_NO_FAULTS_H_
#define COFFERDAM_TESTS_COVERAGE_NO_FAULTS_H_

#if __has_include("base/faults.h")
#include "base/faults.h"
#define FaultIsOn(fault) false
#endif

#endif  // COFFERDAM_TESTS_COVERAGE_NO_FAULTS_H_
