// The default model that the binary carries.
#ifndef COFFERDAM_CLI_EMBEDDED_MODEL_H_
#define COFFERDAM_CLI_EMBEDDED_MODEL_H_

#include <string>

#include "absl/status/statusor.h"

namespace cofferdam::cli {

inline constexpr const char* kEmbeddedModelName = "cofferdam-default";

// The path of a file with the embedded model's bytes, so that processes can map and share it. It is written to
// the user's cache folder when it is not there yet, or is not byte for byte the same.
// Errors: FailedPrecondition when it can't be written, with what to set.
absl::StatusOr<std::string> EmbeddedModelFile();

}  // namespace cofferdam::cli

#endif  // COFFERDAM_CLI_EMBEDDED_MODEL_H_
