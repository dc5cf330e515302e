#include "gateway/key_hash.h"

#include <sodium.h>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace cofferdam::gateway {
namespace {

constexpr std::string_view kHashLabel = "cofferdam api key hash";
constexpr std::string_view kDomainLabel = "cofferdam api key domain";
constexpr size_t kRandomBytes = 32;

void Hash(std::string_view label, std::string_view key, unsigned char* out, size_t bytes) {
  CD_CHECK(sodium_init() >= 0, "libsodium starts");
  const int failed = crypto_generichash(out, bytes, reinterpret_cast<const unsigned char*>(key.data()), key.size(),
                                        reinterpret_cast<const unsigned char*>(label.data()), label.size());
  CD_CHECK(failed == 0, "BLAKE2b takes these sizes");
}

}  // namespace

KeyHash HashOfKey(std::string_view key) {
  KeyHash hash{};
  Hash(kHashLabel, key, hash.data(), hash.size());
  return hash;
}

std::string DomainOfKey(std::string_view key) {
  std::array<unsigned char, 16> bytes{};
  Hash(kDomainLabel, key, bytes.data(), bytes.size());
  std::array<char, 33> hex{};
  sodium_bin2hex(hex.data(), hex.size(), bytes.data(), bytes.size());
  return hex.data();
}

std::string HexOfHash(const KeyHash& hash) {
  std::array<char, 2 * kKeyHashBytes + 1> hex{};
  sodium_bin2hex(hex.data(), hex.size(), hash.data(), hash.size());
  return hex.data();
}

std::optional<KeyHash> HashFromHex(std::string_view hex) {
  KeyHash hash{};
  size_t length = 0;
  if (hex.size() != 2 * hash.size() || hex.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  if (sodium_hex2bin(hash.data(), hash.size(), hex.data(), hex.size(), nullptr, &length, nullptr) != 0) return std::nullopt;
  return length == hash.size() ? std::optional(hash) : std::nullopt;
}

std::string NewApiKey() {
  CD_CHECK(sodium_init() >= 0, "libsodium starts");
  std::array<unsigned char, kRandomBytes> bytes{};
  std::array<char, sodium_base64_ENCODED_LEN(kRandomBytes, sodium_base64_VARIANT_URLSAFE_NO_PADDING)> text{};
  randombytes_buf(bytes.data(), bytes.size());
  sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(), sodium_base64_VARIANT_URLSAFE_NO_PADDING);
  std::string key = absl::StrCat("cd-", text.data());
  sodium_memzero(bytes.data(), bytes.size());
  sodium_memzero(text.data(), text.size());
  return key;
}

}  // namespace cofferdam::gateway
