// How much of what a step reads is verified (`--verify-reads`). Tags are always compared; there is no off.
#ifndef COFFERDAM_ENGINE_VERIFY_H_
#define COFFERDAM_ENGINE_VERIFY_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace cofferdam::engine {

struct VerifyReads {
  enum class Mode : uint8_t {
    kTags,     // tags at both ends of every page, before and after the step
    kSampled,  // and the bytes of `sampled_pages` sealed pages of the batch, in turn, after every step
    kFull,     // and the bytes of every sealed page of the batch, as attention reads them
  };
  Mode mode = Mode::kTags;
  uint32_t sampled_pages = 0;

  friend bool operator==(const VerifyReads&, const VerifyReads&) = default;
};

inline constexpr uint32_t kMaxSampledPages = 65536;

// "tags", "sampled:N" with N from 1 to kMaxSampledPages, or "full"; InvalidArgument for anything else.
absl::StatusOr<VerifyReads> ParseVerifyReads(std::string_view text);
std::string ToString(const VerifyReads& verify);

}  // namespace cofferdam::engine

#endif  // COFFERDAM_ENGINE_VERIFY_H_
