#include "gateway/options.h"

#include <gtest/gtest.h>

#include "gateway/key_ring.h"

namespace cofferdam::gateway {
namespace {

GatewayOptions Options() {
  GatewayOptions options;
  options.decode_addresses = {"unix:/run/decode"};
  return options;
}

absl::Status CheckKey(const std::string& key) {
  GatewayOptions options = Options();
  options.api_keys = {key};
  return CheckOptions(options);
}

TEST(Options, AKeyThatIsTakenLetsItsHolderIn) {
  for (const std::string key : {"k", "two words", "#k", "bearer k"}) {
    EXPECT_TRUE(CheckKey(key).ok()) << key;
    EXPECT_NE(KeyRing(std::vector{RecordOfPlainKey(key)}).Find("Bearer " + key), nullptr) << key;
  }
}

TEST(Options, AKeyThatNoHeaderCanCarryIsRefused) {
  for (const std::string key : {"", " ", " k", "k ", "\tk", "k\n"}) EXPECT_FALSE(CheckKey(key).ok()) << "'" << key << "'";
}

TEST(Options, WithoutKeysNobodyElseReachesTheServerUnlessThatIsSaid) {
  for (const char* host : {"127.0.0.1", "127.0.0.2", "localhost", "::1"}) {
    GatewayOptions options = Options();
    options.host = host;
    EXPECT_TRUE(CheckOptions(options).ok()) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "192.168.1.7", "::ffff:10.0.0.1", ""}) {
    GatewayOptions options = Options();
    options.host = host;
    EXPECT_TRUE(absl::IsInvalidArgument(CheckOptions(options))) << host;
    options.allow_anyone = true;
    EXPECT_TRUE(CheckOptions(options).ok()) << host;
    options.allow_anyone = false;
    options.key_file = "keys.json";
    EXPECT_TRUE(CheckOptions(options).ok()) << host;
    EXPECT_FALSE(IsOpen(options));
  }
}

TEST(Options, KeysComeFromOnePlace) {
  GatewayOptions options = Options();
  options.key_file = "keys.json";
  options.api_keys = {"k"};
  EXPECT_TRUE(absl::IsInvalidArgument(CheckOptions(options)));
}

}  // namespace
}  // namespace cofferdam::gateway
