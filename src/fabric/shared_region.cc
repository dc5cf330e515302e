#include "fabric/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/memory.h"

// Older C libraries lack it; the kernel has it since 5.1.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace cofferdam::fabric {
namespace {

absl::Status Failed(const char* what, size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("KV pool of ", bytes >> 20, " MiB: ", what, ": ", std::generic_category().message(errno)));
}

// Before anything is allocated: the kernel would rather kill processes, ours or others, than say no at a touch.
absl::Status CheckAvailable(size_t bytes) {
  const uint64_t available = AvailableMemoryBytes();
  if (bytes <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("KV pool of ", bytes >> 20, " MiB: only ", available >> 20, " MiB of memory are available"));
}

}  // namespace

SharedRegion::SharedRegion(std::span<std::byte> bytes, int fd) : bytes_(bytes), fd_(fd) {
  // KV is people's text in another form.
  madvise(bytes_.data(), bytes_.size(), MADV_DONTDUMP);
  madvise(bytes_.data(), bytes_.size(), MADV_DONTFORK);
  locked_ = mlock(bytes_.data(), bytes_.size()) == 0;
  // Touched now, so that a pool that does not fit fails at start and not under load.
  std::memset(bytes_.data(), 0, bytes_.size());
}

SharedRegion::~SharedRegion() {
  munmap(bytes_.data(), bytes_.size());
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::CreatePrivate(size_t bytes) {
  if (absl::Status status = CheckAvailable(bytes); !status.ok()) return status;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Failed("mmap", bytes);
  madvise(memory, bytes, MADV_HUGEPAGE);
  return std::unique_ptr<SharedRegion>(new SharedRegion({static_cast<std::byte*>(memory), bytes}, -1));
}

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::CreateShared(size_t bytes) {
  if (absl::Status status = CheckAvailable(bytes); !status.ok()) return status;
  const int fd = memfd_create("cofferdam-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Failed("memfd_create", bytes);
  void* memory = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    const absl::Status failed = Failed("mapping the memfd", bytes);
    close(fd);
    return failed;
  }
  madvise(memory, bytes, MADV_HUGEPAGE);  // given where the system's shmem_enabled is `advise`
  auto region = std::unique_ptr<SharedRegion>(new SharedRegion({static_cast<std::byte*>(memory), bytes}, fd));
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
    return Failed("sealing the memfd", bytes);
  return region;
}

bool SharedMemoryMayBeHuge() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string setting;
  std::getline(file, setting);  // all choices, with the one in force in brackets
  return !setting.empty() && setting.find("[never]") == std::string::npos && setting.find("[deny]") == std::string::npos;
}

}  // namespace cofferdam::fabric
