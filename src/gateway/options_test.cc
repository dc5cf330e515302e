#include "gateway/options.h"

#include <gtest/gtest.h>

#include "gateway/key_ring.h"

namespace cofferdam::gateway {
namespace {

absl::Status CheckKey(const std::string& key) {
  GatewayOptions options;
  options.decode_addresses = {"unix:/run/decode"};
  options.api_keys = {key};
  return CheckOptions(options);
}

TEST(Options, AKeyThatIsTakenLetsItsHolderIn) {
  for (const std::string key : {"k", "two words", "#k", "bearer k"}) {
    EXPECT_TRUE(CheckKey(key).ok()) << key;
    EXPECT_TRUE(KeyRing({key}).DomainFor("Bearer " + key).has_value()) << key;
  }
}

TEST(Options, AKeyThatNoHeaderCanCarryIsRefused) {
  for (const std::string key : {"", " ", " k", "k ", "\tk", "k\n"}) EXPECT_FALSE(CheckKey(key).ok()) << "'" << key << "'";
}

}  // namespace
}  // namespace cofferdam::gateway
