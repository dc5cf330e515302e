// The file of API keys: hashes, and what each key's holder may do.
//
// {"keys": [{"id", "hash", "tenant", "domain", "models", "requests_per_minute", "tokens_per_minute", "concurrency",
//            "priority", "context_tokens", "created"}]}
// "id", "hash" and "tenant" must be there. A field of another name is refused: a limit that is misspelt is no limit.
#ifndef COFFERDAM_GATEWAY_KEY_FILE_H_
#define COFFERDAM_GATEWAY_KEY_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/key_hash.h"

namespace cofferdam::gateway {

inline constexpr size_t kMaxKeys = 65536;

// 0: without limit.
struct KeyLimits {
  uint64_t requests_per_minute = 0;
  uint64_t tokens_per_minute = 0;  // of prompts and answers together
  uint32_t concurrency = 0;        // answers that are generated or wait, each of a request's `n` for itself
  uint64_t context_tokens = 0;     // prompt and answer of one request

  friend bool operator==(const KeyLimits&, const KeyLimits&) = default;
};

struct KeyRecord {
  std::string id{};  // names the key in logs and to `cofferdam keys`
  KeyHash hash{};
  std::string tenant{};
  std::string domain{};               // of isolation: keys of one domain share cached prefixes
  std::vector<std::string> models{};  // empty: all
  KeyLimits limits{};
  uint32_t priority = 0;  // added to the request's own: served as one that came so many seconds later
  int64_t created = 0;    // seconds since 1970

  bool Allows(std::string_view model) const;
  friend bool operator==(const KeyRecord&, const KeyRecord&) = default;
};

// The record of a key that an operator wrote out: a tenant of its own, without limits.
KeyRecord RecordOfPlainKey(std::string_view key);
// Of each once, whatever the order and however often one is named.
std::vector<KeyRecord> RecordsOfPlainKeys(const std::vector<std::string>& keys);

// Errors: INVALID_ARGUMENT, saying what is wrong with which field.
absl::Status CheckKeyRecord(const KeyRecord& record);

// Errors: INVALID_ARGUMENT that names the entry and the field; two keys of one id or one hash are refused, too.
absl::StatusOr<std::vector<KeyRecord>> ParseKeyFile(std::string_view text);
// What ParseKeyFile reads.
std::string RenderKeyFile(const std::vector<KeyRecord>& records);

// Errors: NOT_FOUND without the file, INVALID_ARGUMENT as ParseKeyFile, or when it is too large or may be written by
// every user of the machine: who writes it lets himself in.
absl::StatusOr<std::vector<KeyRecord>> ReadKeyFile(const std::string& path);

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_KEY_FILE_H_
