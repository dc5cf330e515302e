#include "text/utf8.h"

#include "base/check.h"

namespace cofferdam::text {
namespace {

enum class Scan { kWhole, kUnfinished, kInvalid };
struct Character {
  Scan scan;
  size_t bytes;  // of the character, of its beginning, or of the ill-formed part (at least 1)
};

struct Lead {
  size_t length;  // 0: cannot start a character
  unsigned char second_min, second_max;
};

Lead LeadOf(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// REQUIRES: !bytes.empty()
Character ScanOne(std::string_view bytes) {
  const Lead lead = LeadOf(static_cast<unsigned char>(bytes[0]));
  if (lead.length == 0) return {Scan::kInvalid, 1};
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Scan::kUnfinished, i};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const unsigned char low = i == 1 ? lead.second_min : 0x80;
    const unsigned char high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return {Scan::kInvalid, i};
  }
  return {Scan::kWhole, lead.length};
}

}  // namespace

bool IsValidUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Character next = ScanOne(bytes);
    if (next.scan != Scan::kWhole) return false;
    bytes.remove_prefix(next.bytes);
  }
  return true;
}

std::string Utf8Stream::Feed(std::string_view bytes) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined.append(bytes);
    bytes = joined;
    held_.clear();
  }
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Character next = ScanOne(bytes);
    if (next.scan == Scan::kUnfinished) {
      held_.assign(bytes);
      break;
    }
    out.append(next.scan == Scan::kWhole ? bytes.substr(0, next.bytes) : kReplacement);
    bytes.remove_prefix(next.bytes);
  }
  CD_CHECK(held_.size() <= 3, "a held-back character is unfinished");
  return out;
}

std::string Utf8Stream::Finish() {
  std::string out(held_.empty() ? std::string_view() : kReplacement);
  held_.clear();
  return out;
}

}  // namespace cofferdam::text
