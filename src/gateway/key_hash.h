// What is kept of an API key: hashes, never the key.
#ifndef COFFERDAM_GATEWAY_KEY_HASH_H_
#define COFFERDAM_GATEWAY_KEY_HASH_H_

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace cofferdam::gateway {

inline constexpr size_t kKeyHashBytes = 32;
using KeyHash = std::array<unsigned char, kKeyHashBytes>;

// BLAKE2b under a label. A key that Cofferdam made is random, so that its hash needs no salt and no slowness.
KeyHash HashOfKey(std::string_view key);
// Hex of another hash, so that a domain in a log tells nothing of the stored hash. The same in every process.
std::string DomainOfKey(std::string_view key);

std::string HexOfHash(const KeyHash& hash);
// None unless it is 64 digits of lower-case hex.
std::optional<KeyHash> HashFromHex(std::string_view hex);

// "cd-" and 43 characters of URL-safe base64: 256 random bits.
std::string NewApiKey();

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_KEY_HASH_H_
