// The memory of a pool: private to its process, or readable (never writable) by peers on the same host.
#ifndef COFFERDAM_FABRIC_SHARED_REGION_H_
#define COFFERDAM_FABRIC_SHARED_REGION_H_

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/statusor.h"

namespace cofferdam::fabric {

// Zeroed, touched, kept out of core dumps and of forked children, and locked into memory where the limit allows.
// Owns the mapping and the descriptor. Immutable; the bytes belong to whoever the pool says.
class SharedRegion {
 public:
  // With huge pages, where the system allows them. A sealed memfd (SHRINK, GROW, FUTURE_WRITE, SEAL): its owner's mapping, made
  // before, stays the only one that can write. ResourceExhausted when memory (asked for before any is taken) or descriptors are
  // short.
  static absl::StatusOr<std::unique_ptr<SharedRegion>> CreateShared(size_t bytes);
  // Anonymous memory with huge pages, for a pool that nobody else reads.
  static absl::StatusOr<std::unique_ptr<SharedRegion>> CreatePrivate(size_t bytes);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  int fd() const { return fd_; }  // -1 when private
  bool locked() const { return locked_; }

 private:
  SharedRegion(std::span<std::byte> bytes, int fd);
  std::span<std::byte> bytes_;
  int fd_;
  bool locked_ = false;
};

// Whether the kernel may give CreateShared huge pages: its shmem_enabled is not `never` or `deny`.
bool SharedMemoryMayBeHuge();

}  // namespace cofferdam::fabric

#endif  // COFFERDAM_FABRIC_SHARED_REGION_H_
