// The checksums of runs and payloads (seal.h).
//
// XXH3 is compiled in, so that it uses this build's instructions: the library of the distribution is built for the oldest
// processor.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <vector>

#include "base/check.h"
#include "kv/seal.h"

namespace cofferdam::kv {

uint64_t RunChecksum(std::span<const std::byte> run) { return XXH3_64bits(run.data(), run.size()); }

void RunChecksums(const Layout& layout, std::span<const std::byte> payload, std::span<uint64_t> sums) {
  CD_CHECK(payload.size() == layout.payload_bytes() && sums.size() == layout.runs(), "a payload has its layout's size");
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = RunChecksum(payload.subspan(i * layout.run_bytes(), layout.run_bytes()));
}

uint64_t RootChecksum(const Layout& layout, std::span<const std::byte> payload, std::span<const uint64_t> sums) {
  const auto padding = payload.subspan(layout.runs() * layout.run_bytes());
  return XXH3_64bits_withSeed(sums.data(), sums.size_bytes(), XXH3_64bits(padding.data(), padding.size()));
}

uint64_t PayloadChecksum(const Layout& layout, std::span<const std::byte> payload) {
  std::vector<uint64_t> sums(layout.runs());
  RunChecksums(layout, payload, sums);
  return RootChecksum(layout, payload, sums);
}

}  // namespace cofferdam::kv
