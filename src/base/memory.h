// How much memory this process may still take.
#ifndef COFFERDAM_BASE_MEMORY_H_
#define COFFERDAM_BASE_MEMORY_H_

#include <cstdint>

namespace cofferdam {

// The machine's available memory (MemAvailable of proc(5)), or what the control group (v2) leaves of its limit when that is
// less (page cache counts as used there). 0 when it can not be read.
uint64_t AvailableMemoryBytes();

}  // namespace cofferdam

#endif  // COFFERDAM_BASE_MEMORY_H_
