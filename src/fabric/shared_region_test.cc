#include "fabric/shared_region.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "fabric/testing.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace cofferdam::fabric {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBytes = 1 << 20;

// The VmFlags of the mapping that starts at `address`, or "" when there is none.
std::string FlagsOf(const void* address) {
  std::ostringstream start;
  start << std::hex << reinterpret_cast<uintptr_t>(address) << "-";
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.rfind(start.str(), 0) == 0) inside = true;
    if (inside && line.rfind("VmFlags:", 0) == 0) return line;
  }
  return "";
}

TEST(SharedRegionTest, IsSealedAndClosedOnExec) {
  auto region = SharedRegion::CreateShared(kBytes);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(fcntl((*region)->fd(), F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
  EXPECT_NE(fcntl((*region)->fd(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(fcntl((*region)->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SharedRegionTest, StartsZeroedAndItsOwnerGoesOnWriting) {
  for (bool shared : {true, false}) {
    auto region = shared ? SharedRegion::CreateShared(kBytes) : SharedRegion::CreatePrivate(kBytes);
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_EQ((*region)->fd() >= 0, shared);
    const auto bytes = (*region)->bytes();
    ASSERT_EQ(bytes.size(), kBytes);
    for (std::byte byte : bytes) ASSERT_EQ(byte, std::byte{0});
    std::memset(bytes.data(), 0x5a, bytes.size());
    EXPECT_EQ(bytes.back(), std::byte{0x5a});
  }
}

TEST(SharedRegionTest, StaysOutOfCoreDumpsAndForkedChildren) {
  for (bool shared : {true, false}) {
    auto region = shared ? SharedRegion::CreateShared(kBytes) : SharedRegion::CreatePrivate(kBytes);
    ASSERT_TRUE(region.ok()) << region.status();
    const std::string flags = FlagsOf((*region)->bytes().data());
    if (flags.empty()) GTEST_SKIP() << "this kernel does not tell VmFlags";
    EXPECT_THAT(flags, HasSubstr(" dd")) << "MADV_DONTDUMP";
    EXPECT_THAT(flags, HasSubstr(" dc")) << "MADV_DONTFORK";
    void* const memory = (*region)->bytes().data();
    EXPECT_EQ(testing::RunInChild([&] { return madvise(memory, kBytes, MADV_NORMAL) == 0 ? 1 : 0; }), 0) << "mapped in a child";
  }
}

TEST(SharedRegionTest, MoreThanThereIsIsAnErrorAndNoCrash) {
  // More than an address space, so that a missing check fails at mmap and takes no memory from anybody.
  constexpr size_t kHuge = size_t{1} << 60;
  for (const absl::Status& status : {SharedRegion::CreateShared(kHuge).status(), SharedRegion::CreatePrivate(kHuge).status()}) {
    EXPECT_TRUE(absl::IsResourceExhausted(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("available")) << "refused before anything was allocated";
  }
  EXPECT_FALSE(SharedRegion::CreateShared(0).ok());
}

}  // namespace
}  // namespace cofferdam::fabric
