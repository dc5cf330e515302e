// Assertions of invariants, on in every build. A broken invariant ends the process: for strangers' secrets a
// dead worker is better than a wrong one. Never use CHECK on anything that input or a peer can cause; return a status.
#ifndef COFFERDAM_BASE_CHECK_H_
#define COFFERDAM_BASE_CHECK_H_

namespace cofferdam::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const char* what) noexcept;
}  // namespace cofferdam::internal

// CD_CHECK(condition, "I9: what must hold"): the text names the invariant, where it is one of the design's.
#define CD_CHECK(condition, what)                                               \
  do {                                                                          \
    if (!(condition)) [[unlikely]]                                              \
      ::cofferdam::internal::CheckFailed(__FILE__, __LINE__, #condition, what); \
  } while (false)

#endif  // COFFERDAM_BASE_CHECK_H_
