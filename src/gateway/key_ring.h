// API keys and the isolation domains that they stand for.
#ifndef COFFERDAM_GATEWAY_KEY_RING_H_
#define COFFERDAM_GATEWAY_KEY_RING_H_

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cofferdam::gateway {

// Keeps hashes, never keys. Thread-safe: it does not change.
class KeyRing {
 public:
  // No keys: everybody is let in, into the domain "default".
  explicit KeyRing(const std::vector<std::string>& keys);

  // The domain of the key in an Authorization header ("Bearer KEY"), or none when there is no such key. The time it
  // takes does not depend on which key matches or how much of one.
  std::optional<std::string> DomainFor(std::string_view authorization) const;

 private:
  struct Entry {
    std::array<unsigned char, 32> hash{};
    std::string domain;  // hex of another hash, so that a domain in a log tells nothing of the stored hash
  };
  std::vector<Entry> entries_;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_KEY_RING_H_
