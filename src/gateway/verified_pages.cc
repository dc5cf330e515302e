#include "gateway/verified_pages.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace cofferdam::gateway {
namespace {

uint64_t SaturatingSum(uint64_t a, uint64_t b) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  return b > kMost - a ? kMost : a + b;
}

}  // namespace

std::optional<ApiError> JudgeVerifyHeader(const std::optional<std::string>& value) {
  if (!value.has_value() || *value == "1") return std::nullopt;
  return InvalidRequest(
      absl::StrCat("The header ", kVerifyHeader, " must be sent once, as '", kVerifyHeader, ": 1', or not at all."), kVerifyHeader);
}

void VerifiedPages::AddPages(uint64_t pages) { pages_ = SaturatingSum(pages_, pages); }

void VerifiedPages::AddChecks(const v1::Finished& finished) {
  checks_known_ = true;
  const int entries = std::min(finished.checks_size(), kMaxCheckCounts);
  for (int i = 0; i < entries; ++i) {
    const v1::CheckCount& count = finished.checks(i);
    const auto* name = std::find(kCheckNames.begin(), kCheckNames.end(), count.kind());
    if (name == kCheckNames.end()) continue;
    uint64_t& pages = checks_[static_cast<size_t>(name - kCheckNames.begin())];
    pages = SaturatingSum(pages, count.pages());
  }
}

void VerifiedPages::Add(const VerifiedPages& other) {
  AddPages(other.pages_);
  checks_known_ = checks_known_ || other.checks_known_;
  for (size_t i = 0; i < checks_.size(); ++i) checks_[i] = SaturatingSum(checks_[i], other.checks_[i]);
}

std::string VerifiedPages::Text() const {
  std::string text = absl::StrCat("pages=", pages_);
  for (size_t i = 0; checks_known_ && i < checks_.size(); ++i) {
    text += ", ";
    text += kCheckNames[i];
    absl::StrAppend(&text, "=", checks_[i]);
  }
  return text;
}

}  // namespace cofferdam::gateway
