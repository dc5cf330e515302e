#include "fabric/fabric.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fabric/shm.h"

namespace cofferdam::fabric {
namespace {

constexpr size_t kMaxSocketPath = 107;  // sun_path of unix(7), less its final zero

absl::StatusOr<std::string> ShmPath(const std::string& address) {
  if (absl::StartsWith(address, "tcp:") || absl::StartsWith(address, "rdma:")) {
    return absl::UnimplementedError(
        absl::StrCat("fabric address '", address, "': this version reads over shared memory alone, as in 'shm:/path/to/socket'"));
  }
  if (!absl::StartsWith(address, "shm:")) {
    return absl::InvalidArgumentError(absl::StrCat("fabric address '", address, "' must look like 'shm:/path/to/socket'"));
  }
  std::string path = address.substr(4);
  if (path.empty() || path.size() > kMaxSocketPath) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket path of fabric address '", address, "' must have 1 to ", kMaxSocketPath, " bytes"));
  }
  return path;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Source>> Serve(const std::string& address, int fd, const RegionInfo& info) {
  auto path = ShmPath(address);
  if (!path.ok()) return path.status();
  return ShmSource::Serve(*path, fd, info);
}

absl::StatusOr<std::unique_ptr<Reader>> Connect(const std::string& address, const kv::Digest128& layout_id,
                                                std::chrono::milliseconds timeout) {
  auto path = ShmPath(address);
  if (!path.ok()) return path.status();
  return ShmReader::Connect(*path, layout_id, timeout);
}

}  // namespace cofferdam::fabric
