#include "gateway/key_ring.h"

#include <gtest/gtest.h>

namespace cofferdam::gateway {
namespace {

TEST(KeyRing, WithoutKeysEverybodyIsOneDomain) {
  const KeyRing open({});
  EXPECT_EQ(open.DomainFor(""), "default");
  EXPECT_EQ(open.DomainFor("Bearer whatever"), "default");
}

TEST(KeyRing, AKeyIsADomainThatDoesNotShowIt) {
  const KeyRing ring({"sk-one", "sk-two"});
  const auto one = ring.DomainFor("Bearer sk-one");
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(one->size(), 32u);
  EXPECT_EQ(one->find("one"), std::string::npos);
  EXPECT_NE(one, ring.DomainFor("Bearer sk-two"));
  // The same in every process: prefix pages of a tenant outlive a gateway.
  EXPECT_EQ(one, KeyRing({"sk-one"}).DomainFor("bearer  sk-one "));
}

TEST(KeyRing, OthersAreRefused) {
  const KeyRing ring({"sk-one"});
  for (const char* header :
       {"", "Bearer", "Bearer ", "sk-one", "Basic sk-one", "Bearer sk-onf", "Bearer sk-on", "Bearer sk-one1"}) {
    EXPECT_EQ(ring.DomainFor(header), std::nullopt) << header;
  }
  EXPECT_EQ(ring.DomainFor("Bearer " + std::string(100000, 'x')), std::nullopt);
}

}  // namespace
}  // namespace cofferdam::gateway
