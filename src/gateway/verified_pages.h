// What a client that asks is told of the checks that were made for its request.
#ifndef COFFERDAM_GATEWAY_VERIFIED_PAGES_H_
#define COFFERDAM_GATEWAY_VERIFIED_PAGES_H_

#include <cofferdam.pb.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gateway/api_error.h"

namespace cofferdam::gateway {

inline constexpr char kVerifyHeader[] = "Cofferdam-Verify";      // of the request
inline constexpr char kVerifiedHeader[] = "Cofferdam-Verified";  // of the answer

// The names of kv::kAllCheckKinds, in its order: this folder may not use kv, and a test compares the two.
inline constexpr std::array<std::string_view, 6> kCheckNames = {"tags", "seal", "payload", "scrub", "content", "rows"};
// A worker has one entry for a kind. What comes behind these is not read.
inline constexpr int kMaxCheckCounts = 16;

// `value` is HttpRequest::verify. None when it is absent or asks for the counts; else 400: somebody who asked for proof
// and misspelled it must not take an answer without it for one.
std::optional<ApiError> JudgeVerifyHeader(const std::optional<std::string>& value);

// The counts of one request, over all its attempts. They come from another process: sums stop at the largest number, and
// kinds that are not known are left out. Not thread-safe.
class VerifiedPages {
 public:
  void AddPages(uint64_t pages);
  void AddChecks(const v1::Finished& finished);
  // Of another choice of the same request.
  void Add(const VerifiedPages& other);
  // "pages=16, tags=640, seal=16, payload=0, scrub=0, content=0". Before a worker has told its checks only "pages=16": a
  // count that is not known is not zero.
  std::string Text() const;

 private:
  uint64_t pages_ = 0;  // that came from a prefill worker
  bool checks_known_ = false;
  std::array<uint64_t, kCheckNames.size()> checks_{};
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_VERIFIED_PAGES_H_
