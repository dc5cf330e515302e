// The start-up test of non-interference (I13); see Executor::SelfTest.
#ifndef COFFERDAM_MODEL_SELF_TEST_H_
#define COFFERDAM_MODEL_SELF_TEST_H_

#include <cstdint>

#include "absl/status/status.h"
#include "model/executor.h"

namespace cofferdam::model {

absl::Status RunSelfTest(Executor& executor, uint32_t max_rows);

}  // namespace cofferdam::model

#endif  // COFFERDAM_MODEL_SELF_TEST_H_
