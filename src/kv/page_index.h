// Which pages a prefix cache holds, by identity, for threads that do not own the cache.
#ifndef COFFERDAM_KV_PAGE_INDEX_H_
#define COFFERDAM_KV_PAGE_INDEX_H_

#include <cstddef>
#include <span>

#include "absl/container/flat_hash_set.h"
#include "base/mutex.h"
#include "kv/hash.h"

namespace cofferdam::kv {

// Thread-safe. An answer is a hint: the page may be evicted a moment later, and nothing is read by it.
class PageIndex {
 public:
  void Insert(const Digest128& identity) {
    MutexLock lock(mutex_);
    held_.insert(identity);
  }
  void Erase(const Digest128& identity) {
    MutexLock lock(mutex_);
    held_.erase(identity);
  }
  // How many of these pages, from the first, are held. Identities are made with a domain's key: nobody else can name its pages.
  size_t CountPrefix(std::span<const Digest128> identities) const {
    MutexLock lock(mutex_);
    size_t count = 0;
    while (count < identities.size() && held_.contains(identities[count])) ++count;
    return count;
  }

 private:
  mutable Mutex mutex_;
  absl::flat_hash_set<Digest128> held_ CD_GUARDED_BY(mutex_);
};

}  // namespace cofferdam::kv

#endif  // COFFERDAM_KV_PAGE_INDEX_H_
