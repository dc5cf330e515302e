#include "cli/keys.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/supervisor.h"
#include "gateway/random_hex.h"

namespace cofferdam::cli {
namespace {

using gateway::KeyRecord;

int Refuse(const absl::Status& status) {
  std::fprintf(stderr, "cofferdam keys: %s\n", std::string(status.message()).c_str());
  return absl::IsUnavailable(status) ? 1 : kExitRefused;
}

absl::Status Failed(const std::string& path, std::string_view what) {
  const int why = errno;
  return absl::UnavailableError(absl::StrCat(path, " cannot be ", std::string(what), ": ", std::generic_category().message(why)));
}

// Held while a file is read, changed and replaced. The lock is on a file beside it: the file itself goes away.
class FileLock {
 public:
  explicit FileLock(const std::string& path) : path_(path + ".lock") {
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    while (fd_ >= 0 && flock(fd_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      close(std::exchange(fd_, -1));
    }
    if (fd_ < 0) status_ = Failed(path_, "locked");
  }
  ~FileLock() {
    if (fd_ >= 0) close(fd_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  std::string path_;
  int fd_ = -1;
  absl::Status status_;
};

absl::Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t put = write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Failed(path, "written");
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return fsync(fd) == 0 ? absl::OkStatus() : Failed(path, "written");
}

// The file behind all links: a link stays a link, and whichever name a command uses, it takes the same lock.
std::string Resolved(const std::string& path) {
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, error);
  return error ? path : resolved.string();
}

absl::Status Replace(const std::string& path, const std::vector<KeyRecord>& records) {
  std::string fresh = path + ".XXXXXX";
  const int fd = mkostemp(fresh.data(), O_CLOEXEC);  // mode 0600
  if (fd < 0) return Failed(path, "written");
  // Who could read the old file (the gateway's group) can read the new one.
  struct stat old {};
  absl::Status status;
  if (stat(path.c_str(), &old) == 0) {
    const bool kept = fchmod(fd, old.st_mode & 0777) == 0 && (fchown(fd, old.st_uid, old.st_gid) == 0 || geteuid() == old.st_uid);
    if (!kept) status = Failed(path, "replaced with the same owner");
  }
  if (status.ok()) status = WriteAll(fd, gateway::RenderKeyFile(records), path);
  if (close(fd) != 0 && status.ok()) status = Failed(path, "written");
  if (status.ok() && std::rename(fresh.c_str(), path.c_str()) != 0) status = Failed(path, "replaced");
  if (!status.ok()) unlink(fresh.c_str());
  return status;
}

int Print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return 0;
  return Refuse(absl::UnavailableError("the output cannot be written"));
}

int Add(const KeysFlags& flags) {
  const FileLock lock(flags.file);
  if (!lock.status().ok()) return Refuse(lock.status());
  auto records = gateway::ReadKeyFile(flags.file);
  if (absl::IsNotFound(records.status())) records = std::vector<KeyRecord>();
  if (!records.ok()) return Refuse(records.status());
  if (records->size() >= gateway::kMaxKeys)
    return Refuse(absl::InvalidArgumentError("the file is full; revoke keys that nobody uses"));
  KeyRecord record = flags.record;
  if (record.id.empty()) record.id = "key-" + gateway::RandomHex(6);
  if (record.domain.empty()) record.domain = record.tenant;
  record.created = std::time(nullptr);
  std::string key = gateway::NewApiKey();
  record.hash = gateway::HashOfKey(key);
  if (absl::Status status = CheckKeyRecord(record); !status.ok()) return Refuse(status);
  if (std::ranges::any_of(*records, [&](const KeyRecord& other) { return other.id == record.id; }))
    return Refuse(
        absl::InvalidArgumentError(absl::StrCat("there is a key '", record.id, "' already; revoke it, or take another --id")));
  records->push_back(record);
  if (absl::Status status = Replace(flags.file, *records); !status.ok()) return Refuse(status);
  std::fprintf(stderr, "Key %s of tenant %s. It is shown this once; the file holds only its hash.\n", record.id.c_str(),
               record.tenant.c_str());
  const int code = Print(key + "\n");
  sodium_memzero(key.data(), key.size());
  return code;
}

std::string Shown(uint64_t number) { return number == 0 ? "-" : absl::StrCat(number); }

std::string DateOf(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  std::array<char, 32> text{};
  if (seconds == 0 || gmtime_r(&time, &parts) == nullptr) return "-";
  return std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts) > 0 ? text.data() : "-";
}

int List(const KeysFlags& flags) {
  const auto records = gateway::ReadKeyFile(flags.file);
  if (!records.ok()) return Refuse(records.status());
  if (flags.json) return Print(gateway::RenderKeyFile(*records));
  std::vector<std::array<std::string, 10>> rows{
      {"ID", "TENANT", "DOMAIN", "MODELS", "REQUESTS/MIN", "TOKENS/MIN", "CONCURRENCY", "PRIORITY", "CONTEXT", "CREATED"}};
  for (const KeyRecord& record : *records) {
    const gateway::KeyLimits& limits = record.limits;
    rows.push_back({record.id, record.tenant, record.domain, record.models.empty() ? "all" : absl::StrJoin(record.models, ","),
                    Shown(limits.requests_per_minute), Shown(limits.tokens_per_minute), Shown(limits.concurrency),
                    Shown(record.priority), Shown(limits.context_tokens), DateOf(record.created)});
  }
  std::array<size_t, 10> widths{};
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      out += row[i];
      out += i + 1 < row.size() ? std::string(widths[i] - row[i].size() + 2, ' ') : "\n";
    }
  }
  return Print(out);
}

int Revoke(const KeysFlags& flags) {
  const FileLock lock(flags.file);
  if (!lock.status().ok()) return Refuse(lock.status());
  auto records = gateway::ReadKeyFile(flags.file);
  if (!records.ok()) return Refuse(records.status());
  // All or none: a name that is not there is most likely misspelt.
  for (const std::string& id : flags.ids) {
    const size_t removed = std::erase_if(*records, [&id](const KeyRecord& record) { return record.id == id; });
    if (removed == 0)
      return Refuse(
          absl::InvalidArgumentError(absl::StrCat("there is no key '", id, "'; nothing was revoked. See cofferdam keys list")));
  }
  if (absl::Status status = Replace(flags.file, *records); !status.ok()) return Refuse(status);
  return Print(absl::StrCat("revoked ", absl::StrJoin(flags.ids, ", "), "; a running gateway refuses it within two seconds\n"));
}

}  // namespace

void AddKeysOptions(CLI::App& app, KeysFlags& flags) {
  app.require_subcommand(1);
  const auto command = [&](const char* name, const char* help) {
    CLI::App* added = app.add_subcommand(name, help);
    added->add_option("--keys", flags.file, "The key file, as the gateway is given it")->required();
    return added;
  };
  CLI::App* add = command("add", "Make a key and print it");
  KeyRecord& record = flags.record;
  add->add_option("--tenant", record.tenant, "Whose key it is")->required();
  add->add_option("--id", record.id, "Name of the key in logs (default: a random one)");
  add->add_option("--domain", record.domain, "Isolation domain: keys of one domain share cached prefixes (default: the tenant)");
  add->add_option("--allow-model", record.models, "Model that the key may use; may be given several times (default: all)");
  add->add_option("--requests-per-minute", record.limits.requests_per_minute, "Requests in a minute (default: no limit)");
  add->add_option("--tokens-per-minute", record.limits.tokens_per_minute,
                  "Tokens of prompts and answers in a minute (default: no limit)");
  add->add_option("--concurrency", record.limits.concurrency, "Answers that are generated or wait (default: no limit)");
  add->add_option("--priority", record.priority, "Served as one that came so many seconds later, up to 60");
  add->add_option("--context-tokens", record.limits.context_tokens,
                  "Prompt and answer of one request together (default: what the model has)");
  CLI::App* list = command("list", "Show the keys of a file");
  list->add_flag("--json", flags.json, "As the file has them");
  CLI::App* revoke = command("revoke", "Take keys away");
  revoke->add_option("id", flags.ids, "Names of the keys")->required();
}

int RunKeys(const CLI::App& app, KeysFlags flags) {
  flags.file = Resolved(flags.file);
  const std::string command = app.get_subcommands().front()->get_name();
  if (command == "add") return Add(flags);
  return command == "list" ? List(flags) : Revoke(flags);
}

}  // namespace cofferdam::cli
