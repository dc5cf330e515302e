#include "kv/checks.h"

namespace cofferdam::kv {

std::string_view ToString(CheckKind kind) {
  switch (kind) {
    case CheckKind::kTags:
      return "tags";
    case CheckKind::kSeal:
      return "seal";
    case CheckKind::kPayload:
      return "payload";
    case CheckKind::kScrub:
      return "scrub";
    case CheckKind::kContent:
      return "content";
    case CheckKind::kRows:
      return "rows";
  }
  return "unknown";
}

}  // namespace cofferdam::kv
