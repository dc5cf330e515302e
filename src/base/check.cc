#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace cofferdam::internal {

void CheckFailed(const char* file, int line, const char* condition, const char* what) noexcept {
  std::fprintf(stderr, "invariant broken: %s (%s) at %s:%d\n", what, condition, file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace cofferdam::internal
