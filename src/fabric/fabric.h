// One-sided reads between workers: the owner of the destination reads, nobody writes into another's memory (I3).
#ifndef COFFERDAM_FABRIC_FABRIC_H_
#define COFFERDAM_FABRIC_FABRIC_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kv/layout.h"

namespace cofferdam::fabric {

// What a source says of the memory that it lets be read.
struct RegionInfo {
  uint64_t region = 0;  // the boot id of the pool
  uint64_t bytes = 0;
  kv::Digest128 layout_id{};
};

struct ReadRequest {
  uint64_t region = 0;
  uint64_t source_offset = 0;
  std::span<std::byte> destination;  // stays valid, and nobody else's, until `done`
};

// Called exactly once, on the fabric's thread (after Close, on the caller's): OK when all bytes have arrived. Errors: Unavailable
// (the source is gone or the reader was closed), InvalidArgument (another region, or outside of it). After it nothing touches the
// destination.
using ReadDone = std::function<void(absl::Status)>;

// The connection to one source. Thread-safe.
class Reader {
 public:
  virtual ~Reader() = default;
  // Reads complete in the order in which they were asked for.
  virtual void Read(ReadRequest request, ReadDone done) = 0;
  // Idempotent, from any thread but the fabric's: what is outstanding completes, most of it with an error, before it
  // returns. REQUIRES: not called in a ReadDone; a ReadDone does not hold the last reference to its reader either.
  virtual void Close() = 0;
  virtual const RegionInfo& region() const = 0;
  // False once the source is known to be gone.
  virtual bool alive() const = 0;
};

// Serves one region until destroyed.
class Source {
 public:
  virtual ~Source() = default;
};

// "shm:PATH". `fd` is a sealed memfd that holds the region and outlives the source. A socket that an earlier process left
// behind is replaced. Errors: InvalidArgument (address), Unimplemented (tcp, rdma), Unavailable (the socket cannot be
// bound, another process serves on it, or something else than a socket lies there).
absl::StatusOr<std::unique_ptr<Source>> Serve(const std::string& address, int fd, const RegionInfo& info);

// Errors: as above, and FailedPrecondition when the source's layout is another one (both ids in the message), or its
// memory is not sealed, or not of the size it says.
absl::StatusOr<std::unique_ptr<Reader>> Connect(const std::string& address, const kv::Digest128& layout_id,
                                                std::chrono::milliseconds timeout);

}  // namespace cofferdam::fabric

#endif  // COFFERDAM_FABRIC_FABRIC_H_
