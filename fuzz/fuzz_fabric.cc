// The frames of the fabric over shared memory, on real sockets: a source that says anything, and a reader that says anything.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fabric/bounds.h"
#include "fabric/fabric.h"
#include "fabric/shared_region.h"
#include "fuzz.h"

namespace cofferdam::fabric {
namespace {

constexpr size_t kRegionBytes = 8192;
constexpr std::chrono::milliseconds kPatience{200};
constexpr kv::Digest128 kLayout{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

struct TemporaryFolder {
  std::string path;
  TemporaryFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "fuzz-fabric-XXXXXX";
    path = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
};

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

// What a source hands over beside its bytes.
enum class Hand : uint8_t { kNothing, kSealed, kSealedTwice, kUnsealed, kNoMemory, kKinds };

void Send(int peer, std::string_view bytes, const std::vector<int>& fds) {
  iovec data{.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::copy(fds.begin(), fds.end(), reinterpret_cast<int*>(CMSG_DATA(header)));
  }
  (void)!sendmsg(peer, &message, MSG_NOSIGNAL);
}

// Answers each connection with the message that the running input asks for, and closes the connection of the input before.
class LyingSource {
 public:
  explicit LyingSource(const std::string& path) : listener_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    const sockaddr_un address = AddressOf(path);
    CD_CHECK(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && listen(listener_, 16) == 0,
             "the socket can be served");
    std::thread([this] { Main(); }).detach();
  }

  void Say(std::string bytes, std::vector<int> fds, std::string after) {
    const std::lock_guard lock(mutex_);
    bytes_ = std::move(bytes);
    fds_ = std::move(fds);
    after_ = std::move(after);
  }

 private:
  void Main() {
    while (true) {
      const int peer = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (peer < 0) continue;
      {
        const std::lock_guard lock(mutex_);
        Send(peer, bytes_, fds_);
        if (!after_.empty()) Send(peer, after_, {});
      }
      if (peer_ >= 0) close(peer_);
      peer_ = peer;
    }
  }
  const int listener_;
  int peer_ = -1;
  std::mutex mutex_;
  std::string bytes_, after_;
  std::vector<int> fds_;
};

// Everything that lives as long as the process.
struct World {
  TemporaryFolder folder;
  std::unique_ptr<SharedRegion> region;
  int unsealed = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  std::unique_ptr<Source> source;  // an honest one
  std::unique_ptr<LyingSource> liar;

  World() {
    auto made = SharedRegion::CreateShared(kRegionBytes);
    CD_CHECK(made.ok() && ftruncate(unsealed, kRegionBytes) == 0, "memory can be made");
    region = *std::move(made);
    for (size_t i = 0; i < kRegionBytes; ++i) region->bytes()[i] = static_cast<std::byte>(i * 7);
    auto served = Serve("shm:" + Honest(), region->fd(), {.region = 99, .bytes = kRegionBytes, .layout_id = kLayout});
    CD_CHECK(served.ok(), "an honest source is served");
    source = *std::move(served);
    liar = std::make_unique<LyingSource>(Liar());
  }
  std::string Honest() const { return folder.path + "/honest"; }
  std::string Liar() const { return folder.path + "/liar"; }
};

World& TheWorld() {
  static World* world = new World;
  static const int registered = std::atexit([] { std::filesystem::remove_all(TheWorld().folder.path); });
  (void)registered;
  return *world;
}

std::vector<int> HandedOver(Hand hand) {
  World& world = TheWorld();
  switch (hand) {
    case Hand::kSealed:
      return {world.region->fd()};
    case Hand::kSealedTwice:
      return {world.region->fd(), world.region->fd()};
    case Hand::kUnsealed:
      return {world.unsealed};
    case Hand::kNoMemory:
      return {STDERR_FILENO};
    case Hand::kNothing:
    case Hand::kKinds:
      break;
  }
  return {};
}

absl::Status ReadNow(Reader& reader, const ReadRequest& request) {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<absl::Status> result;
  reader.Read(request, [&](absl::Status status) {
    const std::lock_guard lock(mutex);
    result = std::move(status);
    changed.notify_one();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return result.has_value(); });
  return *result;
}

// A read brings the bytes that lie there, or none at all.
void CheckRead(Reader& reader, fuzz::Input& input, bool may_fail) {
  std::vector<std::byte> to(input.Number(2) % 600, std::byte{0xEE});
  const ReadRequest request{.region = input.Byte() % 4 == 0 ? input.Number(8) : reader.region().region,
                            .source_offset = input.Byte() % 4 == 0 ? input.Number(8) : input.Number(2),
                            .destination = to};
  const bool inside = CheckBounds(request, reader.region().region, kRegionBytes).ok();
  const absl::Status status = ReadNow(reader, request);
  CD_CHECK(!status.ok() || inside, "a read outside of the region fails");
  CD_CHECK(status.ok() || !inside || may_fail, "a read inside of the region succeeds");
  for (size_t i = 0; i < to.size(); ++i) {
    const std::byte expected = status.ok() ? TheWorld().region->bytes()[request.source_offset + i] : std::byte{0xEE};
    CD_CHECK(to[i] == expected, "a read brings what lies there, or nothing");
  }
}

// The reader against a source that says anything.
void AgainstALiar(fuzz::Input& input) {
  World& world = TheWorld();
  const auto hand = static_cast<Hand>(input.Byte() % static_cast<uint8_t>(Hand::kKinds));
  const std::string after(input.Text(input.Byte() % 4));
  const std::string hello(input.Text(input.Byte()));
  world.liar->Say(hello.empty() ? std::string(1, '\0') : hello, HandedOver(hand), after);
  const auto reader = Connect("shm:" + world.Liar(), kLayout, kPatience);
  if (!reader.ok()) return;
  CD_CHECK(hand == Hand::kSealed, "only sealed memory is mapped, and one of it");
  CD_CHECK((*reader)->region().bytes == kRegionBytes && (*reader)->region().layout_id == kLayout,
           "only memory of the size and layout that was told is mapped");
  CheckRead(**reader, input, true);
  (*reader)->Close();
  CD_CHECK(!(*reader)->alive(), "who was closed is gone");
}

// The source against a peer that says anything: others are served as before.
void AgainstABadPeer(fuzz::Input& input) {
  World& world = TheWorld();
  const int peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const sockaddr_un address = AddressOf(world.Honest());
  while (connect(peer, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    CD_CHECK(errno == EINTR, "the source accepts");  // libFuzzer's clock is a signal
  const auto hand = static_cast<Hand>(input.Byte() % static_cast<uint8_t>(Hand::kKinds));
  Send(peer, input.Text(input.Byte()), HandedOver(hand));
  const auto reader = Connect("shm:" + world.Honest(), kLayout, std::chrono::seconds(4));
  close(peer);
  if (!reader.ok()) std::fprintf(stderr, "%s\n", reader.status().ToString().c_str());
  CD_CHECK(reader.ok(), "an honest reader is served beside a bad one");
  CheckRead(**reader, input, false);
}

}  // namespace
}  // namespace cofferdam::fabric

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cofferdam::fabric;
  cofferdam::fuzz::Input input(data, size);
  if (input.Byte() % 4 != 0) {
    AgainstALiar(input);
  } else {
    AgainstABadPeer(input);
  }
  return 0;
}
