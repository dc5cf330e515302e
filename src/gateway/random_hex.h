// Names that nobody guesses and that do not come twice.
#ifndef COFFERDAM_GATEWAY_RANDOM_HEX_H_
#define COFFERDAM_GATEWAY_RANDOM_HEX_H_

#include <sodium.h>

#include <string>

namespace cofferdam::gateway {

// `bytes` random bytes as lower-case hex, two digits each. Thread-safe. REQUIRES: sodium_init() was called.
inline std::string RandomHex(size_t bytes) {
  std::string random(bytes, '\0');
  randombytes_buf(random.data(), random.size());
  std::string hex(2 * bytes + 1, '\0');  // libsodium ends it with a zero
  sodium_bin2hex(hex.data(), hex.size(), reinterpret_cast<const unsigned char*>(random.data()), random.size());
  hex.pop_back();
  return hex;
}

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_RANDOM_HEX_H_
