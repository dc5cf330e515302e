// A mutex that Clang's thread-safety analysis understands. It wraps std::mutex rather than absl::Mutex because
// ThreadSanitizer sees std::mutex, but not the prebuilt Abseil's.
#ifndef COFFERDAM_BASE_MUTEX_H_
#define COFFERDAM_BASE_MUTEX_H_

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define CD_ATTRIBUTE(x) __attribute__((x))
#else
#define CD_ATTRIBUTE(x)
#endif
#define CD_GUARDED_BY(x) CD_ATTRIBUTE(guarded_by(x))
#define CD_REQUIRES(...) CD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define CD_EXCLUDES(...) CD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace cofferdam {

class CD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() CD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() CD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class CD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CD_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() CD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable for Mutex. Waits are loops in the caller: `while (!ready) changed.Wait(mutex);`.
class CondVar {
 public:
  void Wait(Mutex& mutex) CD_REQUIRES(mutex) { variable_.wait(mutex); }
  // Returns false when `timeout` passed without a notification.
  template <typename Duration>
  bool WaitFor(Mutex& mutex, Duration timeout) CD_REQUIRES(mutex) {
    return variable_.wait_for(mutex, timeout) == std::cv_status::no_timeout;
  }
  void NotifyOne() { variable_.notify_one(); }
  void NotifyAll() { variable_.notify_all(); }

 private:
  std::condition_variable_any variable_;
};

}  // namespace cofferdam

#endif  // COFFERDAM_BASE_MUTEX_H_
