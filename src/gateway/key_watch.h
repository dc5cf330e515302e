// Reads the key file again when it has changed.
#ifndef COFFERDAM_GATEWAY_KEY_WATCH_H_
#define COFFERDAM_GATEWAY_KEY_WATCH_H_

#include <chrono>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "gateway/key_ring.h"

namespace cofferdam::gateway {

// Looks once every `interval`. A file that is gone or wrong is logged, and the keys that were known stay: a typing mistake
// locks nobody out, nor does it let anybody in.
class KeyWatch {
 public:
  // `ring` must outlive this.
  KeyWatch(KeyRing& ring, std::string path, std::chrono::milliseconds interval);
  ~KeyWatch();
  KeyWatch(const KeyWatch&) = delete;
  KeyWatch& operator=(const KeyWatch&) = delete;

 private:
  void Run();
  void Look();

  KeyRing& ring_;
  const std::string path_;
  const std::chrono::milliseconds interval_;
  std::string seen_;  // which version of the file was looked at; of the thread alone
  Mutex mutex_;
  CondVar wake_;
  bool stop_ CD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_KEY_WATCH_H_
