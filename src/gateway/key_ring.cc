#include "gateway/key_ring.h"

#include <sodium.h>

#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/check.h"

namespace cofferdam::gateway {
namespace {

constexpr size_t kMaxHeaderBytes = 1024;

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

std::shared_ptr<const Grant> OpenGrant() {
  const KeyRecord record{.id = "-", .tenant = "default", .domain = "default"};
  return std::make_shared<const Grant>(Grant{record, std::make_shared<KeyUse>(record.limits, KeyUse::Time{})});
}

}  // namespace

KeyRing::KeyRing(std::optional<std::vector<KeyRecord>> records) : table_(std::make_shared<const Table>()) {
  CD_CHECK(sodium_init() >= 0, "libsodium starts");
  static_assert(sizeof slot_key_ == crypto_shorthash_KEYBYTES);
  randombytes_buf(slot_key_.data(), slot_key_.size());
  if (records.has_value()) {
    Replace(*std::move(records));
  } else {
    open_grant_ = OpenGrant();
  }
}

uint64_t KeyRing::Slot(const KeyHash& hash) const {
  uint64_t slot = 0;
  static_assert(sizeof slot == crypto_shorthash_BYTES);
  crypto_shorthash(reinterpret_cast<unsigned char*>(&slot), hash.data(), hash.size(), slot_key_.data());
  return slot;
}

std::shared_ptr<const Grant> KeyRing::Find(std::string_view authorization) const {
  if (open()) return open_grant_;
  const std::string_view key = BearerKey(authorization);
  if (key.empty()) return nullptr;
  std::shared_ptr<const Table> table;
  {
    const MutexLock lock(mutex_);
    table = table_;
  }
  const KeyHash hash = HashOfKey(key);
  const auto [first, last] = table->equal_range(Slot(hash));
  for (auto entry = first; entry != last; ++entry) {
    const KeyHash& known = entry->second->record.hash;
    if (sodium_memcmp(hash.data(), known.data(), hash.size()) == 0) return entry->second;
  }
  return nullptr;
}

void KeyRing::Replace(std::vector<KeyRecord> records) {
  CD_CHECK(!open(), "a server that is open to all gets no keys later");
  const MutexLock lock(mutex_);
  std::map<std::string_view, std::shared_ptr<KeyUse>> uses;
  for (const auto& [slot, grant] : *table_) uses.emplace(grant->record.id, grant->use);
  auto table = std::make_shared<Table>();
  const auto now = std::chrono::steady_clock::now();
  for (KeyRecord& record : records) {
    const auto found = uses.find(record.id);
    std::shared_ptr<KeyUse> use = found != uses.end() ? found->second : std::make_shared<KeyUse>(record.limits, now);
    use->SetLimits(record.limits, now);
    const uint64_t slot = Slot(record.hash);
    table->emplace(slot, std::make_shared<const Grant>(Grant{std::move(record), std::move(use)}));
  }
  table_ = std::move(table);
}

size_t KeyRing::size() const {
  const MutexLock lock(mutex_);
  return table_->size();
}

}  // namespace cofferdam::gateway
