#include "gateway/key_watch.h"

#include <sys/stat.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace cofferdam::gateway {
namespace {

// Changes with every replacement of the file and with every write that moves its clock; empty: it is not there.
std::string VersionOf(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) return {};
  return absl::StrCat(facts.st_dev, " ", facts.st_ino, " ", facts.st_size, " ", facts.st_mode, " ", facts.st_mtim.tv_sec, ".",
                      facts.st_mtim.tv_nsec, " ", facts.st_ctim.tv_sec, ".", facts.st_ctim.tv_nsec);
}

}  // namespace

KeyWatch::KeyWatch(KeyRing& ring, std::string path, std::chrono::milliseconds interval)
    : ring_(ring), path_(std::move(path)), interval_(interval), seen_("not yet") {
  thread_ = std::thread([this] { Run(); });
}

KeyWatch::~KeyWatch() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

void KeyWatch::Run() {
  for (;;) {
    try {
      Look();
    } catch (const std::exception& problem) {  // out of memory: the next time
      log::error("the API keys could not be read again: {}", problem.what());
      seen_ = "not yet";
    }
    const MutexLock lock(mutex_);
    if (!stop_) wake_.WaitFor(mutex_, interval_);
    if (stop_) return;
  }
}

void KeyWatch::Look() {
  // Before the read: a file that changes meanwhile is read once more.
  std::string version = VersionOf(path_);
  if (version == seen_) return;
  absl::StatusOr<std::vector<KeyRecord>> records = ReadKeyFile(path_);
  seen_ = std::move(version);
  if (!records.ok()) {
    log::error("the API keys stay as they were: {}", std::string(records.status().message()));
    return;
  }
  const size_t count = records->size();
  ring_.Replace(*std::move(records));
  log::info("API keys in force: {}", count);
}

}  // namespace cofferdam::gateway
