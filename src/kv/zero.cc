#include "kv/zero.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace cofferdam::kv {

void ZeroBytes(std::span<std::byte> bytes) {
#ifdef __SSE2__
  CD_CHECK(reinterpret_cast<uintptr_t>(bytes.data()) % sizeof(__m128i) == 0 && bytes.size() % sizeof(__m128i) == 0,
           "pages are aligned");
  auto* at = reinterpret_cast<__m128i*>(bytes.data());
  for (auto* const end = at + bytes.size() / sizeof(__m128i); at != end; ++at) _mm_stream_si128(at, _mm_setzero_si128());
  _mm_sfence();  // or a thread that is told that the page is zero might still see what was there
#else
  std::memset(bytes.data(), 0, bytes.size());
#endif
}

bool IsZero(std::span<const std::byte> bytes) {
  return bytes.empty() || (bytes[0] == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

Zeroer::Zeroer(std::function<void()> on_done) : on_done_(std::move(on_done)), thread_([this] { Main(); }) {}

Zeroer::~Zeroer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyOne();
  }
  thread_.join();
}

void Zeroer::Submit(PageId page, std::span<std::byte> bytes) {
  MutexLock lock(mutex_);
  jobs_.push_back({.page = page, .bytes = bytes});
  changed_.NotifyOne();
}

std::vector<PageId> Zeroer::TakeDone() {
  MutexLock lock(mutex_);
  return std::exchange(done_, {});
}

void Zeroer::Main() {
  while (true) {
    Job job;
    {
      MutexLock lock(mutex_);
      while (jobs_.empty() && !stopping_) changed_.Wait(mutex_);
      if (jobs_.empty()) return;
      job = jobs_.front();
      jobs_.pop_front();
    }
    ZeroBytes(job.bytes);
    {
      MutexLock lock(mutex_);
      done_.push_back(job.page);
    }
    on_done_();
  }
}

}  // namespace cofferdam::kv
