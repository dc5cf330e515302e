#include "engine/verify.h"

#include <charconv>

#include "absl/strings/str_cat.h"

namespace cofferdam::engine {

absl::StatusOr<VerifyReads> ParseVerifyReads(std::string_view text) {
  if (text == "tags") return VerifyReads{};
  if (text == "full") return VerifyReads{.mode = VerifyReads::Mode::kFull};
  constexpr std::string_view kSampled = "sampled:";
  if (text.starts_with(kSampled)) {
    uint32_t pages = 0;
    const std::string_view number = text.substr(kSampled.size());
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), pages);
    if (error == std::errc() && end == number.data() + number.size() && pages >= 1 && pages <= kMaxSampledPages)
      return VerifyReads{.mode = VerifyReads::Mode::kSampled, .sampled_pages = pages};
  }
  return absl::InvalidArgumentError(absl::StrCat("--verify-reads is '", std::string(text.substr(0, 64)),
                                                 "'; it may be tags, sampled:N with N from 1 to ", kMaxSampledPages,
                                                 ", or full. There is no off"));
}

std::string ToString(const VerifyReads& verify) {
  switch (verify.mode) {
    case VerifyReads::Mode::kTags:
      return "tags";
    case VerifyReads::Mode::kSampled:
      return absl::StrCat("sampled:", verify.sampled_pages);
    case VerifyReads::Mode::kFull:
      return "full";
  }
  return "unknown";
}

}  // namespace cofferdam::engine
