// How much longer than usual tests wait where sanitizers slow everything down.
#ifndef COFFERDAM_TESTS_SUPPORT_PATIENCE_H_
#define COFFERDAM_TESTS_SUPPORT_PATIENCE_H_

namespace cofferdam {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kPatience = 6;
#else
inline constexpr int kPatience = 1;
#endif

}  // namespace cofferdam

#endif  // COFFERDAM_TESTS_SUPPORT_PATIENCE_H_
