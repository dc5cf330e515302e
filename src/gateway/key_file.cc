#include "gateway/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <set>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gateway/fields.h"
#include "gateway/options.h"
#include "text/utf8.h"

namespace cofferdam::gateway {
namespace {

constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxModels = 256, kMaxModelBytes = 512;
constexpr uint64_t kMaxRate = 1'000'000'000'000;
constexpr uint32_t kMaxConcurrency = 1 << 20;
constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr std::string_view kKnownFields[] = {
    "id",          "hash",     "tenant",         "domain", "models", "requests_per_minute", "tokens_per_minute",
    "concurrency", "priority", "context_tokens", "created"};

absl::Status Wrong(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("'", std::string(field), "' ", std::string(what)));
}

bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= kMaxNameBytes && std::ranges::all_of(text, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

std::vector<std::string> ReadModels(Fields& fields) {
  std::vector<std::string> models;
  const Json* list = fields.Find("models");
  if (list == nullptr) return models;
  if (!list->is_array()) {
    fields.Fail("models", "must be an array of strings");
    return models;
  }
  if (list->size() > kMaxModels) {
    fields.Fail("models", absl::StrCat("must have at most ", kMaxModels, " entries"));
    return models;
  }
  for (const Json& entry : *list) {
    if (entry.is_string()) {
      models.push_back(entry.get<std::string>());
    } else {
      fields.Fail("models", "must be an array of strings");
    }
  }
  return models;
}

KeyLimits ReadLimits(Fields& fields) {
  const auto read = [&fields](std::string_view name, uint64_t most) {
    return static_cast<uint64_t>(fields.Integer(name, {0, static_cast<int64_t>(most)}).value_or(0));
  };
  return {.requests_per_minute = read("requests_per_minute", kMaxRate),
          .tokens_per_minute = read("tokens_per_minute", kMaxRate),
          .concurrency = static_cast<uint32_t>(read("concurrency", kMaxConcurrency)),
          .context_tokens = read("context_tokens", kMaxRate)};
}

absl::StatusOr<KeyRecord> ReadRecord(const Json& object) {
  if (!object.is_object()) return absl::InvalidArgumentError("must be an object");
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(kKnownFields, name) == std::end(kKnownFields)) {
      return absl::InvalidArgumentError(absl::StrCat("has a field '", name.substr(0, kMaxNameBytes), "', which is not known"));
    }
  }
  Fields fields(object);
  KeyRecord record;
  record.id = fields.String("id", kMaxNameBytes);
  const std::optional<KeyHash> hash = HashFromHex(fields.String("hash", 2 * kKeyHashBytes));
  if (!hash.has_value()) fields.Fail("hash", "must be 64 digits of lower-case hex, as `cofferdam keys add` writes them");
  record.hash = hash.value_or(KeyHash{});
  record.tenant = fields.String("tenant", kMaxNameBytes);
  record.domain = fields.String("domain", kMaxNameBytes);
  if (fields.Find("domain") == nullptr) record.domain = record.tenant;
  record.models = ReadModels(fields);
  // "no models" would read as "all models" further on.
  if (fields.Find("models") != nullptr && record.models.empty())
    fields.Fail("models", "must not be empty; leave it out to allow all");
  record.limits = ReadLimits(fields);
  record.priority = static_cast<uint32_t>(fields.Integer("priority", {0, kMaxPriority}).value_or(0));
  record.created = fields.Integer("created", {0, std::numeric_limits<int64_t>::max()}).value_or(0);
  if (fields.error().has_value()) return absl::InvalidArgumentError(fields.error()->message);
  if (absl::Status status = CheckKeyRecord(record); !status.ok()) return status;
  return record;
}

absl::StatusOr<std::string> ReadAll(int fd, const std::string& path) {
  std::string bytes;
  std::string part(size_t{64} << 10, '\0');
  for (;;) {
    const ssize_t got = read(fd, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read: ", std::generic_category().message(errno)));
    if (got == 0) return bytes;
    bytes.append(part, 0, static_cast<size_t>(got));
    if (bytes.size() > kMaxFileBytes)
      return absl::InvalidArgumentError(absl::StrCat(path, " is larger than ", kMaxFileBytes, " bytes"));
  }
}

}  // namespace

bool KeyRecord::Allows(std::string_view model) const { return models.empty() || std::ranges::find(models, model) != models.end(); }

KeyRecord RecordOfPlainKey(std::string_view key) {
  const std::string domain = DomainOfKey(key);
  return {.id = "key-" + domain.substr(0, 12), .hash = HashOfKey(key), .tenant = domain, .domain = domain};
}

std::vector<KeyRecord> RecordsOfPlainKeys(const std::vector<std::string>& keys) {
  std::vector<KeyRecord> records;
  for (const std::string& key : std::set(keys.begin(), keys.end())) records.push_back(RecordOfPlainKey(key));
  return records;
}

absl::Status CheckKeyRecord(const KeyRecord& record) {
  const std::string rule = absl::StrCat("must have 1 to ", kMaxNameBytes, " characters, of letters, digits, '-', '_' and '.'");
  if (!IsName(record.id)) return Wrong("id", rule);
  if (!IsName(record.tenant)) return Wrong("tenant", rule);
  if (!IsName(record.domain)) return Wrong("domain", rule);
  if (record.models.size() > kMaxModels) return Wrong("models", absl::StrCat("must have at most ", kMaxModels, " entries"));
  for (const std::string& model : record.models) {
    if (model.empty() || model.size() > kMaxModelBytes || !text::IsValidUtf8(model))
      return Wrong("models", absl::StrCat("must hold names of 1 to ", kMaxModelBytes, " bytes of UTF-8"));
  }
  if (record.priority > kMaxPriority) return Wrong("priority", absl::StrCat("must be from 0 to ", kMaxPriority));
  if (record.limits.requests_per_minute > kMaxRate) return Wrong("requests_per_minute", absl::StrCat("must be up to ", kMaxRate));
  if (record.limits.tokens_per_minute > kMaxRate) return Wrong("tokens_per_minute", absl::StrCat("must be up to ", kMaxRate));
  if (record.limits.concurrency > kMaxConcurrency) return Wrong("concurrency", absl::StrCat("must be up to ", kMaxConcurrency));
  if (record.limits.context_tokens > kMaxRate) return Wrong("context_tokens", absl::StrCat("must be up to ", kMaxRate));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<KeyRecord>> ParseKeyFile(std::string_view text) {
  const std::variant<Json, ApiError> parsed = ParseObject(text, "The key file");
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return absl::InvalidArgumentError(error->message);
  const Json& object = std::get<Json>(parsed);
  const auto list = object.find("keys");
  if (list == object.end() || !list->is_array() || object.size() != 1) {
    return absl::InvalidArgumentError("The key file must be {\"keys\": [...]} and nothing else.");
  }
  if (list->size() > kMaxKeys) return absl::InvalidArgumentError(absl::StrCat("The key file holds more than ", kMaxKeys, " keys."));
  std::vector<KeyRecord> records;
  std::set<std::string> ids;
  std::set<KeyHash> hashes;
  for (const Json& entry : *list) {
    absl::StatusOr<KeyRecord> record = ReadRecord(entry);
    absl::Status status = record.status();
    if (status.ok() && !ids.insert(record->id).second) status = Wrong("id", "is that of an earlier key");
    if (status.ok() && !hashes.insert(record->hash).second) status = Wrong("hash", "is that of an earlier key");
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("keys[", records.size(), "]: ", status.message()));
    records.push_back(*std::move(record));
  }
  return records;
}

std::string RenderKeyFile(const std::vector<KeyRecord>& records) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const KeyRecord& record : records) {
    nlohmann::ordered_json entry;
    entry["id"] = record.id;
    entry["hash"] = HexOfHash(record.hash);
    entry["tenant"] = record.tenant;
    entry["domain"] = record.domain;
    if (!record.models.empty()) entry["models"] = record.models;
    const std::pair<const char*, uint64_t> numbers[] = {{"requests_per_minute", record.limits.requests_per_minute},
                                                        {"tokens_per_minute", record.limits.tokens_per_minute},
                                                        {"concurrency", record.limits.concurrency},
                                                        {"priority", record.priority},
                                                        {"context_tokens", record.limits.context_tokens},
                                                        {"created", static_cast<uint64_t>(record.created)}};
    for (const auto& [name, value] : numbers) {
      if (value != 0) entry[name] = value;
    }
    list.push_back(std::move(entry));
  }
  nlohmann::ordered_json file;
  file["keys"] = std::move(list);
  return file.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

absl::StatusOr<std::vector<KeyRecord>> ReadKeyFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int why = errno;
    const std::string message = absl::StrCat(path, " cannot be opened: ", std::generic_category().message(why));
    return why == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
  }
  struct stat facts {};
  absl::StatusOr<std::string> text;
  if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    text = absl::InvalidArgumentError(absl::StrCat(path, " is not a file"));
  } else if ((facts.st_mode & S_IWOTH) != 0) {
    text = absl::InvalidArgumentError(absl::StrCat(path, " may be written by every user of this machine: chmod o-w ", path));
  } else {
    text = ReadAll(fd, path);
  }
  close(fd);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::vector<KeyRecord>> records = ParseKeyFile(*text);
  if (!records.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", records.status().message()));
  return records;
}

}  // namespace cofferdam::gateway
