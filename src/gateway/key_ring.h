// API keys, and what their holders may do.
#ifndef COFFERDAM_GATEWAY_KEY_RING_H_
#define COFFERDAM_GATEWAY_KEY_RING_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "gateway/key_file.h"
#include "gateway/key_use.h"

namespace cofferdam::gateway {

// What the holder of a key may do, as the file said when the request came; and what was used of it, shared by all requests
// of the key, before and after a reload.
struct Grant {
  KeyRecord record;
  std::shared_ptr<KeyUse> use;
};

// Keeps hashes, never keys. Thread-safe.
class KeyRing {
 public:
  // None: everybody is let in, with one grant without limits in the domain "default". With records, even with none of
  // them, only holders of a key are.
  // REQUIRES: no two records of one id or one hash.
  explicit KeyRing(std::optional<std::vector<KeyRecord>> records);

  bool open() const { return open_grant_ != nullptr; }

  // The grant of the key in an Authorization header ("Bearer KEY"), or null when there is no such key. Records are found
  // through a keyed hash of the key's hash, and compared in constant time: how long it takes tells nothing of a stored hash.
  std::shared_ptr<const Grant> Find(std::string_view authorization) const;

  // From now on these are the keys. A key of the same id keeps what it has used. REQUIRES: !open(), and as above.
  void Replace(std::vector<KeyRecord> records);
  size_t size() const;

 private:
  using Table = std::unordered_multimap<uint64_t, std::shared_ptr<const Grant>>;
  uint64_t Slot(const KeyHash& hash) const;

  std::shared_ptr<const Grant> open_grant_;
  std::array<unsigned char, 16> slot_key_{};  // random
  mutable Mutex mutex_;
  std::shared_ptr<const Table> table_ CD_GUARDED_BY(mutex_);
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_KEY_RING_H_
