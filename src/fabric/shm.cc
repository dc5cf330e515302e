#include "fabric/shm.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/check.h"
#include "fabric/bounds.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace cofferdam::fabric {
namespace {

constexpr size_t kMaxPeers = 256;
constexpr std::chrono::milliseconds kOutOfDescriptorsPause{20};
constexpr uint64_t kHelloMagic = 0x31636972626166ULL;  // "fabric1"
constexpr int kNeededSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

// What goes with the descriptor. Same host, same binary format on both sides.
struct Hello {
  uint64_t magic = kHelloMagic;
  uint64_t region = 0;
  uint64_t bytes = 0;
  kv::Digest128 layout_id{};
};

absl::Status Errno(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::generic_category().message(errno)));
}

// A call that a signal has interrupted has not failed. One with a timeout is interrupted even when its process goes on after a
// stop.
template <typename Call>
auto Uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

sockaddr_un Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), std::min(path.size(), sizeof address.sun_path - 1));
  return address;
}

bool SendHello(int socket, const Hello& hello, int fd) {
  iovec data{.iov_base = const_cast<Hello*>(&hello), .iov_len = sizeof hello};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof hello);
}

bool IsSameUser(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 && credentials.uid == geteuid();
}

// Returns the descriptor, or -1 when the message is not a hello with exactly one; others that came are closed.
int ReceiveHello(int socket, Hello& hello) {
  iovec data{.iov_base = &hello, .iov_len = sizeof hello};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t received = Uninterrupted([&] { return recvmsg(socket, &message, MSG_CMSG_CLOEXEC); });
  std::vector<int> fds;
  for (cmsghdr* header = received >= 0 ? CMSG_FIRSTHDR(&message) : nullptr; header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    fds.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(fds.data(), CMSG_DATA(header), fds.size() * sizeof(int));
  }
  const bool whole = received == static_cast<ssize_t>(sizeof hello) && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (whole && hello.magic == kHelloMagic && fds.size() == 1) return fds[0];
  for (int fd : fds) close(fd);
  return -1;
}

// Checks what was handed over before a byte of it is mapped.
absl::Status CheckRegion(int fd, const Hello& hello, const kv::Digest128& layout_id) {
  if (hello.layout_id != layout_id) {
    return absl::FailedPreconditionError(absl::StrCat("the source's page layout is ", kv::Hex(hello.layout_id), ", ours is ",
                                                      kv::Hex(layout_id),
                                                      "; both must serve the same model file with the same page size"));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kNeededSeals) != kNeededSeals)
    return absl::FailedPreconditionError("the source's memory is not sealed against change of size and new writers");
  struct stat status {};
  if (fstat(fd, &status) != 0 || status.st_size < 0 || static_cast<uint64_t>(status.st_size) != hello.bytes || hello.bytes == 0) {
    return absl::FailedPreconditionError("the source's memory has not the size that the source says");
  }
  return absl::OkStatus();
}

}  // namespace

ShmSource::ShmSource(std::string path, int listener, int wake, int fd, const RegionInfo& info)
    : path_(std::move(path)), listener_(listener), wake_(wake), fd_(fd), info_(info), thread_([this] { Main(); }) {}

ShmSource::~ShmSource() {
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof one);
  thread_.join();
  unlink(path_.c_str());  // before the listener goes: from then on the path may be a successor's
  for (int peer : peers_) close(peer);
  close(listener_);
  close(wake_);
}

absl::StatusOr<std::unique_ptr<Source>> ShmSource::Serve(const std::string& path, int fd, const RegionInfo& info) {
  if (absl::Status status = RemoveStaleSocket(path, SOCK_SEQPACKET); !status.ok()) return status;
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) return Errno("socket");
  const sockaddr_un address = Address(path);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || chmod(path.c_str(), 0600) != 0 ||
      listen(listener, 64) != 0) {
    const absl::Status failed = Errno(absl::StrCat("fabric socket ", path));
    close(listener);
    return failed;
  }
  const int wake = eventfd(0, EFD_CLOEXEC);
  if (wake < 0) {
    close(listener);
    return Errno("eventfd");
  }
  return std::unique_ptr<Source>(new ShmSource(path, listener, wake, fd, info));
}

void ShmSource::Accept() {
  const int peer = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (peer < 0) {
    if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(kOutOfDescriptorsPause);  // it stays readable
    return;
  }
  const Hello hello{.region = info_.region, .bytes = info_.bytes, .layout_id = info_.layout_id};
  if (!IsSameUser(peer) || peers_.size() >= kMaxPeers || !SendHello(peer, hello, fd_)) {
    close(peer);
    return;
  }
  peers_.push_back(peer);
}

void ShmSource::Main() {
  while (true) {
    std::vector<pollfd> polled{{.fd = wake_, .events = POLLIN, .revents = 0}, {.fd = listener_, .events = POLLIN, .revents = 0}};
    for (int peer : peers_) polled.push_back({.fd = peer, .events = POLLIN, .revents = 0});
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    for (size_t i = 2; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;  // a peer says nothing: readable means gone
      close(polled[i].fd);
      std::erase(peers_, polled[i].fd);
    }
    if (polled[1].revents != 0) Accept();
  }
}

ShmReader::ShmReader(int socket, std::span<const std::byte> memory, const RegionInfo& info)
    : socket_(socket), memory_(memory), info_(info), thread_([this] { Main(); }), thread_id_(thread_.get_id()) {}

ShmReader::~ShmReader() {
  Close();
  munmap(const_cast<std::byte*>(memory_.data()), memory_.size());
  close(socket_);
}

absl::StatusOr<std::unique_ptr<Reader>> ShmReader::Connect(const std::string& path, const kv::Digest128& layout_id,
                                                           std::chrono::milliseconds timeout) {
  const int link = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (link < 0) return Errno("socket");
  const auto wait_ms = std::max<std::chrono::milliseconds::rep>(timeout.count(), 1);  // the kernel takes 0 for ever
  const timeval patience{.tv_sec = wait_ms / 1000, .tv_usec = wait_ms % 1000 * 1000};
  setsockopt(link, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(link, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const sockaddr_un address = Address(path);
  Hello hello;
  int fd = -1;
  absl::Status status;
  if (Uninterrupted([&] { return connect(link, reinterpret_cast<const sockaddr*>(&address), sizeof address); }) != 0) {
    status = Errno(absl::StrCat("fabric socket ", path));
  } else if (!IsSameUser(link)) {
    status = absl::FailedPreconditionError(absl::StrCat("fabric socket ", path, ": another user serves on it"));
  } else if (fd = ReceiveHello(link, hello); fd < 0) {
    status = absl::UnavailableError(absl::StrCat(
        "fabric socket ", path, ": the source handed over no region in time (it refused us, has too many readers, or hangs)"));
  } else {
    status = CheckRegion(fd, hello, layout_id);
  }
  void* memory = MAP_FAILED;
  if (status.ok()) {
    memory = mmap(nullptr, hello.bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) status = Errno("mapping the source's region");
  }
  if (fd >= 0) close(fd);
  if (!status.ok()) {
    close(link);
    return status;
  }
  madvise(memory, hello.bytes, MADV_DONTDUMP);
  madvise(memory, hello.bytes, MADV_DONTFORK);
  return std::unique_ptr<Reader>(new ShmReader(link, {static_cast<const std::byte*>(memory), hello.bytes},
                                               {.region = hello.region, .bytes = hello.bytes, .layout_id = hello.layout_id}));
}

bool ShmReader::alive() const {
  char byte;
  // The source never writes after its hello: data or an end both mean that it is not the peer we know.
  const ssize_t got = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return !closed_ && got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

void ShmReader::Read(ReadRequest request, ReadDone done) {
  {
    MutexLock lock(mutex_);
    if (!closed_) {
      queue_.emplace_back(std::move(request), std::move(done));
      changed_.NotifyOne();
      return;
    }
  }
  done(absl::UnavailableError("the fabric connection is closed"));
}

void ShmReader::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }
  CD_CHECK(std::this_thread::get_id() != thread_id_, "a reader is not closed on its own thread");
  MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

absl::Status ShmReader::Copy(const ReadRequest& request) const {
  if (closed_) return absl::UnavailableError("the fabric connection was closed");
  if (!alive()) return absl::UnavailableError("the source of the pages is gone");
  if (absl::Status status = CheckBounds(request, info_.region, memory_.size()); !status.ok()) return status;
  std::ranges::copy(memory_.subspan(request.source_offset, request.destination.size()), request.destination.begin());
  return absl::OkStatus();
}

void ShmReader::Main() {
  while (true) {
    std::pair<ReadRequest, ReadDone> next;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !closed_) changed_.Wait(mutex_);
      if (queue_.empty()) return;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    next.second(Copy(next.first));
  }
}

}  // namespace cofferdam::fabric
