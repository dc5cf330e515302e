// The shared-memory fabric between real processes: what a reader can and cannot do to a source's memory.
#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "fabric/fabric.h"
#include "fabric/shared_region.h"
#include "fabric/testing.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace cofferdam::fabric {
namespace {

using std::chrono::milliseconds;
using testing::EndOf;
using ::testing::HasSubstr;
using testing::PendingRead;
using testing::ReadNow;
using testing::RunInChild;
using testing::StartChild;
using testing::TemporaryDirectory;

constexpr uint64_t kRegion = 77;
constexpr size_t kBytes = 1 << 16;
constexpr milliseconds kTimeout{2000};
constexpr kv::Digest128 kLayout{1, 2, 3};

// The message that goes with the descriptor, byte for byte.
struct Hello {
  uint64_t magic = 0x31636972626166ULL;
  uint64_t region = kRegion;
  uint64_t bytes = kBytes;
  kv::Digest128 layout_id = kLayout;
};

sockaddr_un SocketAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

msghdr MessageOf(iovec& data, std::span<char> control) {
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  return message;
}

int OpenDescriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

class ShmTest : public ::testing::Test {
 protected:
  ShmTest() : region_(*SharedRegion::CreateShared(kBytes)) {
    for (size_t i = 0; i < kBytes; ++i) region_->bytes()[i] = static_cast<std::byte>(i % 251);
  }
  void Serve() {
    auto source = fabric::Serve("shm:" + path_, region_->fd(), {.region = kRegion, .bytes = kBytes, .layout_id = kLayout});
    ASSERT_TRUE(source.ok()) << source.status();
    source_ = *std::move(source);
  }
  absl::StatusOr<std::unique_ptr<Reader>> Connect(const kv::Digest128& layout = kLayout, milliseconds timeout = kTimeout) {
    return fabric::Connect("shm:" + path_, layout, timeout);
  }
  ReadRequest Request(uint64_t offset, size_t bytes) {
    arrived_.assign(bytes, std::byte{0xee});
    return {.region = kRegion, .source_offset = offset, .destination = arrived_};
  }
  bool Arrived(uint64_t offset) const {
    return std::memcmp(arrived_.data(), region_->bytes().data() + offset, arrived_.size()) == 0;
  }

  // A source that says `hello` and hands over `fds`, whatever they are. Returns how a reader takes it.
  absl::Status ConnectToFake(
      const Hello& hello, std::vector<int> fds, const std::function<void()>& before_hello = [] {}) {
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const sockaddr_un address = SocketAddress(path_);
    EXPECT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener, 1), 0);
    std::jthread fake([&] {
      const int peer = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      before_hello();
      iovec data{.iov_base = const_cast<Hello*>(&hello), .iov_len = sizeof hello};
      alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
      msghdr message = MessageOf(data, control);
      message.msg_controllen = fds.empty() ? 0 : CMSG_SPACE(fds.size() * sizeof(int));
      if (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
        std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
      }
      sendmsg(peer, &message, MSG_NOSIGNAL);
      char byte;
      (void)!recv(peer, &byte, 1, 0);
      close(peer);
    });
    absl::Status status = Connect().status();
    fake.join();
    close(listener);
    unlink(path_.c_str());
    return status;
  }

  TemporaryDirectory directory_;
  const std::string path_ = directory_.File("fabric");
  std::unique_ptr<SharedRegion> region_;
  std::unique_ptr<Source> source_;
  std::vector<std::byte> arrived_;
};

// What a hostile reader gets out of the socket: the descriptor itself.
int TakeDescriptor(const std::string& path) {
  const int link = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const sockaddr_un address = SocketAddress(path);
  if (connect(link, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return -1;
  Hello hello;
  iovec data{.iov_base = &hello, .iov_len = sizeof hello};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = MessageOf(data, control);
  if (recvmsg(link, &message, MSG_CMSG_CLOEXEC) != sizeof hello || CMSG_FIRSTHDR(&message) == nullptr) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}

// 0 when every attempt to change the memory was refused, else the number of the one that was not.
int AttackWith(int fd) {
  if (fd < 0) return 100;
  if (mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED) return 1;
  void* memory = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return 101;
  if (mprotect(memory, kBytes, PROT_READ | PROT_WRITE) == 0) return 2;
  if (madvise(memory, kBytes, MADV_REMOVE) == 0) return 3;
  if (ftruncate(fd, kBytes / 2) == 0) return 4;
  if (ftruncate(fd, kBytes * 2) == 0) return 5;
  if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0) return 6;
  if (pwrite(fd, "x", 1, 0) == 1) return 7;
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0) return 8;
  const std::string again = "/proc/self/fd/" + std::to_string(fd);
  if (const int reopened = open(again.c_str(), O_RDWR | O_CLOEXEC); reopened >= 0) {
    if (mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, reopened, 0) != MAP_FAILED) return 9;
    if (pwrite(reopened, "x", 1, 0) == 1) return 10;
    if (ftruncate(reopened, 0) == 0) return 11;
    if (fallocate(reopened, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0) return 12;
  }
  if (truncate(again.c_str(), 0) == 0) return 13;
  return static_cast<const volatile char*>(memory)[250] == static_cast<char>(250) ? 0 : 102;
}

TEST_F(ShmTest, I3_AReaderInAnotherProcessCannotChangeTheSourcesMemory) {
  Serve();
  EXPECT_EQ(RunInChild([&] { return AttackWith(TakeDescriptor(path_)); }), 0) << "the number names the attempt";
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(region_->bytes()[i], static_cast<std::byte>(i % 251));
  region_->bytes()[0] = std::byte{99};  // its owner still writes
  EXPECT_EQ(region_->bytes()[0], std::byte{99});
}

TEST_F(ShmTest, ReadsFromAnotherProcessWhatItsOwnerWrites) {
  int to_child[2], to_parent[2];
  ASSERT_EQ(pipe2(to_child, O_CLOEXEC) + pipe2(to_parent, O_CLOEXEC), 0);
  // Before this process has threads: a sanitizer does not follow those of a fork of one that has.
  const pid_t reading = StartChild([&] {
    char byte;
    (void)!read(to_child[0], &byte, 1);
    auto reader = Connect();
    if (!reader.ok() || (*reader)->region().region != kRegion) return 1;
    std::vector<std::byte> page(1000);
    const ReadRequest request{.region = kRegion, .source_offset = 0, .destination = page};
    if (!ReadNow(**reader, request).ok() || page[500] != std::byte{500 % 251}) return 2;
    (void)!write(to_parent[1], "r", 1);
    (void)!read(to_child[0], &byte, 1);
    if (!ReadNow(**reader, request).ok() || page[500] != std::byte{0xab}) return 3;
    return 0;
  });
  close(to_parent[1]);  // a child that fails early writes nothing: we see the end
  Serve();
  EXPECT_EQ(write(to_child[1], "s", 1), 1);
  char byte;
  EXPECT_EQ(read(to_parent[0], &byte, 1), 1);
  region_->bytes()[500] = std::byte{0xab};
  EXPECT_EQ(write(to_child[1], "g", 1), 1);
  EXPECT_EQ(EndOf(reading), 0);
  for (int fd : {to_child[0], to_child[1], to_parent[0]}) close(fd);
}

TEST_F(ShmTest, AKilledSourceFailsTheReadsThatFollow) {
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);  // kill(-1) is everybody
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto own = SharedRegion::CreateShared(kBytes);
    auto source = fabric::Serve("shm:" + path_, (*own)->fd(), {.region = kRegion, .bytes = kBytes, .layout_id = kLayout});
    (void)!write(ready[1], source.ok() ? "y" : "n", 1);
    while (true) pause();
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  auto reader = Connect();
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->alive());
  EXPECT_TRUE(ReadNow(**reader, Request(0, 100)).ok());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE((*reader)->alive());
  EXPECT_TRUE(absl::IsUnavailable(ReadNow(**reader, Request(0, 100))));
  EXPECT_EQ(arrived_[0], std::byte{0xee}) << "nothing was copied";
  close(ready[0]), close(ready[1]);
  Serve();  // over the socket that the dead process left behind
  EXPECT_TRUE(Connect().ok());
}

TEST_F(ShmTest, ASourceThatIsDestroyedFailsTheReadsThatFollow) {
  Serve();
  auto reader = Connect();
  ASSERT_TRUE(reader.ok());
  source_.reset();
  EXPECT_FALSE((*reader)->alive());
  EXPECT_TRUE(absl::IsUnavailable(ReadNow(**reader, Request(0, 100))));
  EXPECT_NE(access(path_.c_str(), F_OK), 0) << "its socket is gone";
}

TEST_F(ShmTest, H6_AnotherLayoutIsRefusedWithBothInTheMessage) {
  Serve();
  constexpr kv::Digest128 kOurs{0xaa, 0xbb};
  const absl::Status status = Connect(kOurs).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(kv::Hex(kLayout)));
  EXPECT_THAT(std::string(status.message()), HasSubstr(kv::Hex(kOurs)));
}

TEST_F(ShmTest, MemoryOfAnotherSizeThanSaidIsRefused) {
  for (uint64_t bytes : {uint64_t{0}, uint64_t{kBytes - 1}, uint64_t{kBytes + 4096}, std::numeric_limits<uint64_t>::max()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(ConnectToFake({.bytes = bytes}, {region_->fd()}))) << bytes;
  }
}

TEST_F(ShmTest, MemoryThatIsNotFullySealedIsRefused) {
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  for (int missing : {kAll, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL}) {
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_EQ(ftruncate(fd, kBytes), 0);
    ASSERT_EQ(fcntl(fd, F_ADD_SEALS, kAll & ~missing), 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(ConnectToFake({}, {fd}))) << missing;
    close(fd);
  }
}

TEST_F(ShmTest, AFileInsteadOfMemoryIsRefused) {
  const int fd = open(directory_.File("plain").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(ftruncate(fd, kBytes), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(ConnectToFake({}, {fd})));
  close(fd);
}

TEST_F(ShmTest, AHelloThatIsWrongOrHasNotOneDescriptorIsRefusedAndLeaksNone) {
  const int before = OpenDescriptors();
  EXPECT_TRUE(absl::IsUnavailable(ConnectToFake({}, {})));
  EXPECT_TRUE(absl::IsUnavailable(ConnectToFake({}, {region_->fd(), region_->fd()})));
  EXPECT_TRUE(absl::IsUnavailable(ConnectToFake({}, {region_->fd(), region_->fd(), region_->fd()})));
  EXPECT_TRUE(absl::IsUnavailable(ConnectToFake({.magic = 1}, {region_->fd()})));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(ShmTest, ASignalDoesNotEndTheWaitForAHello) {
  struct sigaction interrupt {
  }, before{};
  interrupt.sa_handler = [](int) {};
  sigaction(SIGUSR1, &interrupt, &before);
  const auto signal_often = [connecting = pthread_self()] {
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(milliseconds(2));
      pthread_kill(connecting, SIGUSR1);
    }
  };
  EXPECT_TRUE(ConnectToFake({}, {region_->fd()}, signal_often).ok());
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(ShmTest, OutOfBoundsIsAnErrorAndTouchesNothing) {
  Serve();
  auto reader = Connect();
  ASSERT_TRUE(reader.ok());
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  for (uint64_t offset : {uint64_t{kBytes}, uint64_t{kBytes - 63}, kMax, kMax - 63, kMax - 64}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadNow(**reader, Request(offset, 64)))) << offset;
    EXPECT_EQ(arrived_[0], std::byte{0xee});
  }
  ReadRequest other = Request(0, 64);
  other.region = kRegion + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(ReadNow(**reader, other))) << "a region of another boot";
  EXPECT_TRUE(ReadNow(**reader, Request(kBytes - 64, 64)).ok()) << "and the reader goes on";
  EXPECT_TRUE(Arrived(kBytes - 64));
}

TEST_F(ShmTest, AReadOfNoBytesIsARead) {
  Serve();
  auto reader = Connect();
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE(ReadNow(**reader, {.region = kRegion, .source_offset = kBytes, .destination = {}}).ok());
}

TEST_F(ShmTest, CloseEndsEveryOutstandingReadExactlyOnceBeforeItReturns) {
  Serve();
  auto reader = Connect();
  ASSERT_TRUE(reader.ok());
  std::promise<void> blocked, go_on;
  std::vector<std::byte> sink(64);
  // The first ReadDone holds the reader's thread, so that the others are outstanding when Close comes.
  (*reader)->Read({.region = kRegion, .source_offset = 0, .destination = sink}, [&](const absl::Status&) {
    blocked.set_value();
    go_on.get_future().wait();
  });
  blocked.get_future().wait();
  std::vector<PendingRead> reads;
  for (int i = 0; i < 20; ++i)
    reads.emplace_back(**reader,
                       i == 0 ? Request(0, 64) : ReadRequest{.region = kRegion, .source_offset = 0, .destination = arrived_});
  std::jthread closer([&] { (*reader)->Close(); });
  std::jthread second_closer([&] { (*reader)->Close(); });
  while ((*reader)->alive()) std::this_thread::yield();
  go_on.set_value();
  closer.join();
  for (PendingRead& read : reads) {
    EXPECT_EQ(read.calls(), 1);
    EXPECT_TRUE(absl::IsUnavailable(read.Await()));
  }
  EXPECT_EQ(arrived_[0], std::byte{0xee}) << "nothing was copied after Close";
  EXPECT_TRUE(absl::IsUnavailable(ReadNow(**reader, Request(0, 64))));
}

TEST_F(ShmTest, TheSocketIsItsUsersAlone) {
  Serve();
  struct stat status {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
}

TEST_F(ShmTest, AnotherUserGetsNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  Serve();
  ASSERT_EQ(chmod(path_.c_str(), 0666) + chmod(directory_.File(".").c_str(), 0755), 0);  // past the file's own guard
  EXPECT_EQ(RunInChild([&] {
              if (setresuid(12345, 12345, 12345) != 0) return 1;
              if (TakeDescriptor(path_) >= 0) return 2;
              absl::Status status = Connect().status();  // and the reader refuses a source of another user
              return absl::IsFailedPrecondition(status) || absl::IsUnavailable(status) ? 0 : 3;
            }),
            0);
}

TEST_F(ShmTest, ASocketThatIsServedIsNotTakenAwayNorIsAFile) {
  Serve();
  EXPECT_TRUE(absl::IsUnavailable(fabric::Serve("shm:" + path_, region_->fd(), {}).status()));
  EXPECT_TRUE(Connect().ok());
  const std::string file = directory_.File("precious");
  std::ofstream(file) << "text";
  EXPECT_TRUE(absl::IsUnavailable(fabric::Serve("shm:" + file, region_->fd(), {}).status()));
  EXPECT_EQ(std::filesystem::file_size(file), 4u);
}

TEST_F(ShmTest, ASourceThatHangsIsGivenUpAfterTheTimeout) {
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const sockaddr_un address = SocketAddress(path_);
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  EXPECT_TRUE(absl::IsUnavailable(Connect(kLayout, milliseconds(50)).status()));
  EXPECT_TRUE(absl::IsUnavailable(Connect(kLayout, milliseconds(0)).status())) << "0 is not for ever";
  close(listener);
}

TEST_F(ShmTest, AThousandConnectionsOneAfterTheOtherLeaveNothingBehind) {
  Serve();
  { ASSERT_TRUE(Connect().ok()); }
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(Connect().ok()) << i;
  int left = 0;
  for (int tries = 0; tries < 100 && (left = OpenDescriptors()) > 12; ++tries) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_LE(left, 12);
}

TEST_F(ShmTest, NoDescriptorSurvivesAnExec) {
  Serve();
  auto reader = Connect();
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(RunInChild([] {
              execl("/bin/sh", "sh", "-c",
                    "for f in /proc/$$/fd/*; do case $(readlink $f) in *memfd*|*socket:*|*eventfd*) exit 1;; esac; done", nullptr);
              return 99;
            }),
            0);
}

}  // namespace
}  // namespace cofferdam::fabric
