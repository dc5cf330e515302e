#include "gateway/key_ring.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace cofferdam::gateway {
namespace {

TEST(KeyRing, WithoutKeysEverybodyIsOneDomain) {
  const KeyRing ring(std::nullopt);
  EXPECT_TRUE(ring.open());
  EXPECT_EQ(ring.Find("")->record.domain, "default");
  EXPECT_EQ(ring.Find("Bearer whatever"), ring.Find(""));
}

TEST(KeyRing, AFileWithoutKeysLetsNobodyIn) {
  const KeyRing ring(std::vector<KeyRecord>{});
  EXPECT_FALSE(ring.open());
  EXPECT_EQ(ring.Find(""), nullptr);
  EXPECT_EQ(ring.Find("Bearer whatever"), nullptr);
}

TEST(KeyRing, AKeyIsADomainThatDoesNotShowIt) {
  const KeyRing ring(RecordsOfPlainKeys({"sk-one", "sk-two"}));
  const auto one = ring.Find("Bearer sk-one");
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(one->record.domain.size(), 32u);
  EXPECT_EQ(one->record.domain.find("one"), std::string::npos);
  EXPECT_NE(one->record.domain, ring.Find("Bearer sk-two")->record.domain);
  // The same in every process: prefix pages of a tenant outlive a gateway.
  EXPECT_EQ(one->record.domain, KeyRing(RecordsOfPlainKeys({"sk-one"})).Find("bearer  sk-one ")->record.domain);
}

TEST(KeyRing, OthersAreRefused) {
  const KeyRing ring(RecordsOfPlainKeys({"sk-one"}));
  for (const char* header :
       {"", "Bearer", "Bearer ", "sk-one", "Basic sk-one", "Bearer sk-onf", "Bearer sk-on", "Bearer sk-one1"}) {
    EXPECT_EQ(ring.Find(header), nullptr) << header;
  }
  EXPECT_EQ(ring.Find("Bearer " + std::string(100000, 'x')), nullptr);
}

TEST(KeyRing, EveryOneOfManyKeysIsFound) {
  std::vector<std::string> keys;
  for (int i = 0; i < 5000; ++i) keys.push_back(absl::StrCat("key ", i));
  const KeyRing ring(RecordsOfPlainKeys(keys));
  for (const std::string& key : keys) {
    const auto grant = ring.Find("Bearer " + key);
    ASSERT_NE(grant, nullptr) << key;
    EXPECT_EQ(grant->record, RecordOfPlainKey(key));
  }
}

TEST(KeyRing, WhatAKeyHasUsedOutlivesAReload) {
  KeyRecord record = RecordOfPlainKey("sk-one");
  record.limits.requests_per_minute = 1;
  KeyRing ring(std::vector<KeyRecord>{record});
  const auto before = ring.Find("Bearer sk-one");
  const auto now = std::chrono::steady_clock::now();
  ASSERT_FALSE(before->use->TakeRequest(now).has_value());
  record.tenant = "renamed";
  ring.Replace({record, RecordOfPlainKey("sk-two")});
  const auto after = ring.Find("Bearer sk-one");
  ASSERT_NE(after, nullptr);
  EXPECT_EQ(after->record.tenant, "renamed");
  EXPECT_NE(before->record.tenant, "renamed") << "a request that runs keeps what it was granted";
  EXPECT_TRUE(after->use->TakeRequest(now).has_value());
  EXPECT_NE(ring.Find("Bearer sk-two"), nullptr);
  ring.Replace({});
  EXPECT_EQ(ring.Find("Bearer sk-one"), nullptr);
  EXPECT_EQ(ring.size(), 0u);
}

}  // namespace
}  // namespace cofferdam::gateway
