#include "gateway/key_ring.h"

#include <sodium.h>

#include "absl/strings/ascii.h"
#include "base/check.h"

namespace cofferdam::gateway {
namespace {

constexpr std::string_view kHashLabel = "cofferdam api key hash";
constexpr std::string_view kDomainLabel = "cofferdam api key domain";
constexpr size_t kMaxHeaderBytes = 1024;

void Hash(std::string_view label, std::string_view key, unsigned char* out, size_t bytes) {
  const int failed = crypto_generichash(out, bytes, reinterpret_cast<const unsigned char*>(key.data()), key.size(),
                                        reinterpret_cast<const unsigned char*>(label.data()), label.size());
  CD_CHECK(failed == 0, "BLAKE2b takes these sizes");
}

std::string DomainOf(std::string_view key) {
  std::array<unsigned char, 16> bytes{};
  Hash(kDomainLabel, key, bytes.data(), bytes.size());
  std::array<char, 33> hex{};
  sodium_bin2hex(hex.data(), hex.size(), bytes.data(), bytes.size());
  return hex.data();
}

// The key of "Bearer KEY"; empty when it is anything else.
std::string_view BearerKey(std::string_view header) {
  constexpr std::string_view kScheme = "bearer ";
  if (header.size() <= kScheme.size() || header.size() > kMaxHeaderBytes) return {};
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if (absl::ascii_tolower(static_cast<unsigned char>(header[i])) != kScheme[i]) return {};
  }
  header.remove_prefix(kScheme.size());
  while (!header.empty() && header.front() == ' ') header.remove_prefix(1);
  while (!header.empty() && header.back() == ' ') header.remove_suffix(1);
  return header;
}

}  // namespace

KeyRing::KeyRing(const std::vector<std::string>& keys) {
  CD_CHECK(sodium_init() >= 0, "libsodium starts");
  for (const std::string& key : keys) {
    Entry entry;
    Hash(kHashLabel, key, entry.hash.data(), entry.hash.size());
    entry.domain = DomainOf(key);
    entries_.push_back(std::move(entry));
  }
}

std::optional<std::string> KeyRing::DomainFor(std::string_view authorization) const {
  if (entries_.empty()) return "default";
  const std::string_view key = BearerKey(authorization);
  if (key.empty()) return std::nullopt;
  std::array<unsigned char, 32> hash{};
  Hash(kHashLabel, key, hash.data(), hash.size());
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (sodium_memcmp(hash.data(), entry.hash.data(), hash.size()) == 0) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->domain;
}

}  // namespace cofferdam::gateway
