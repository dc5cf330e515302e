#include "kv/hash.h"

#include <bit>

#include "base/check.h"
#include "base/faults.h"

namespace cofferdam::kv {

static_assert(std::endian::native == std::endian::little, "hash inputs and pages are little-endian in memory");

KeyedHasher::KeyedHasher(const Key& key, std::string_view purpose) {
  CD_CHECK(crypto_generichash_blake2b_init(&state_, key.data(), key.size(), sizeof(Digest128)) == 0,
           "BLAKE2b accepts its parameters");
  AddField(purpose);
}

void KeyedHasher::AddInt(uint64_t value) {
  crypto_generichash_blake2b_update(&state_, reinterpret_cast<const uint8_t*>(&value), sizeof value);
}

void KeyedHasher::AddField(std::string_view bytes) {
  AddInt(bytes.size());
  crypto_generichash_blake2b_update(&state_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

void KeyedHasher::AddField(const Digest128& digest) {
  AddField(std::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

Digest128 KeyedHasher::Finish() {
  Digest128 digest;
  crypto_generichash_blake2b_final(&state_, digest.data(), digest.size());
  return digest;
}

Key DomainKey(const Key& cluster_secret, std::string_view domain, std::string_view salt) {
  if (FaultIsOn(Fault::kCrossDomainKey)) domain = salt = {};
  Key key;
  crypto_generichash_blake2b_state state;
  static constexpr std::string_view kPurpose = "cofferdam domain key v2";
  crypto_generichash_blake2b_init(&state, cluster_secret.data(), cluster_secret.size(), key.size());
  for (std::string_view field : {kPurpose, domain, salt}) {
    const uint64_t size = field.size();
    crypto_generichash_blake2b_update(&state, reinterpret_cast<const uint8_t*>(&size), sizeof size);
    crypto_generichash_blake2b_update(&state, reinterpret_cast<const uint8_t*>(field.data()), field.size());
  }
  crypto_generichash_blake2b_final(&state, key.data(), key.size());
  return key;
}

std::string DomainName(std::string_view domain, std::string_view salt) {
  std::string name(domain);
  if (!salt.empty()) name.append(1, '\0').append(salt);
  return name;
}

}  // namespace cofferdam::kv
