// The processor's clock of cycles, for benchmarks.
#ifndef COFFERDAM_BASE_CYCLES_H_
#define COFFERDAM_BASE_CYCLES_H_

#include <cstdint>

namespace cofferdam {

// Rises at a constant rate, about alike on all CPUs; always 0 where there is no such clock.
inline uint64_t CycleCounter() {
#ifdef __x86_64__
  return __builtin_ia32_rdtsc();
#else
  return 0;
#endif
}

}  // namespace cofferdam

#endif  // COFFERDAM_BASE_CYCLES_H_
