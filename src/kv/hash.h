// Keyed hashing for identities (BLAKE2b of libsodium, 128 bits). Inputs are length-prefixed, so that no two
// different lists of fields give the same bytes.
#ifndef COFFERDAM_KV_HASH_H_
#define COFFERDAM_KV_HASH_H_

#include <sodium.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "kv/layout.h"

namespace cofferdam::kv {

using Key = std::array<uint8_t, 32>;

// One hash in the making. Not thread-safe. `purpose` separates the uses of one key.
class KeyedHasher {
 public:
  KeyedHasher(const Key& key, std::string_view purpose);
  void AddField(std::string_view bytes);
  void AddField(const Digest128& digest);
  void AddInt(uint64_t value);
  // REQUIRES: called once, last.
  Digest128 Finish();

 private:
  crypto_generichash_blake2b_state state_{};
};

// The key of one isolation domain, from the cluster's secret, the domain's id, and the salt that a request narrows it with.
Key DomainKey(const Key& cluster_secret, std::string_view domain, std::string_view salt = {});
// The name of such a domain. Domain ids have no zero byte in them.
std::string DomainName(std::string_view domain, std::string_view salt);

}  // namespace cofferdam::kv

#endif  // COFFERDAM_KV_HASH_H_
