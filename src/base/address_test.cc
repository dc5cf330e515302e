#include "base/address.h"

#include <gtest/gtest.h>

#include <string>

namespace cofferdam {
namespace {

TEST(Address, AllowsUnixSocketsAndLoopbackAlone) {
  for (const char* good : {"unix:/run/a.sock", "127.0.0.1:1", "[::1]:65535", "localhost:8000"}) {
    EXPECT_TRUE(CheckLocalAddress(good).ok()) << good;
  }
  for (const std::string& bad :
       {std::string("0.0.0.0:80"), std::string("10.0.0.1:80"), std::string("unix:"), std::string("127.0.0.1"),
        std::string("127.0.0.1:0"), std::string("127.0.0.1:65536"), std::string("localhost.evil:80"),
        "unix:/" + std::string(200, 'a'), std::string("dns:///x:1"), std::string()}) {
    EXPECT_FALSE(CheckLocalAddress(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace cofferdam
