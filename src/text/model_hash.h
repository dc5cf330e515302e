// The identity of a model file: what gateway and workers compare before they talk about tokens.
#ifndef COFFERDAM_TEXT_MODEL_HASH_H_
#define COFFERDAM_TEXT_MODEL_HASH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cofferdam::text {

// The files of a model in order: `path` itself, or all N parts when it is named x-00001-of-0000N.gguf.
// Errors: INVALID_ARGUMENT (a part other than the first), NOT_FOUND (a part is missing).
absl::StatusOr<std::vector<std::string>> ModelFiles(const std::string& path);

// XXH3-128, as 32 hex digits, of the whole content of the model's files in order. It reads everything once; memory use
// does not grow with the file. Errors: those of ModelFiles, and UNKNOWN (the file cannot be read or mapped).
// The file must not shrink meanwhile: a mapped file that does ends the process.
absl::StatusOr<std::string> ModelHash(const std::string& path);

}  // namespace cofferdam::text

#endif  // COFFERDAM_TEXT_MODEL_HASH_H_
