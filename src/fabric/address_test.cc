#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fabric/fabric.h"

namespace cofferdam::fabric {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

absl::Status TryConnect(const std::string& address) { return Connect(address, {}, milliseconds(50)).status(); }

TEST(FabricAddressTest, OtherTransportsAreUnimplementedAndTheMessageNamesWhatIsThere) {
  for (const char* address : {"tcp:127.0.0.1:7000", "rdma:mlx5_0"}) {
    EXPECT_TRUE(absl::IsUnimplemented(TryConnect(address))) << address;
    EXPECT_THAT(std::string(TryConnect(address).message()), HasSubstr("shm:/path"));
    EXPECT_TRUE(absl::IsUnimplemented(Serve(address, -1, {}).status())) << address;
  }
}

TEST(FabricAddressTest, WhatIsNoAddressIsInvalid) {
  for (const char* address : {"", "shm", "/tmp/x", "unix:/tmp/x", "shm:"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(TryConnect(address))) << address;
    EXPECT_TRUE(absl::IsInvalidArgument(Serve(address, -1, {}).status())) << address;
  }
}

TEST(FabricAddressTest, ASocketPathHasAtMost107Bytes) {
  const std::string longest = "shm:/" + std::string(106, 'x');
  EXPECT_TRUE(absl::IsUnavailable(TryConnect(longest))) << TryConnect(longest);
  const absl::Status too_long = TryConnect(longest + "x");
  EXPECT_TRUE(absl::IsInvalidArgument(too_long));
  EXPECT_THAT(std::string(too_long.message()), HasSubstr("107"));
}

TEST(FabricAddressTest, NobodyThereIsUnavailable) { EXPECT_TRUE(absl::IsUnavailable(TryConnect("shm:/nonexistent/fabric"))); }

}  // namespace
}  // namespace cofferdam::fabric
