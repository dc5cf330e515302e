// Random numbers of a simulation: every part draws from a stream of its own, named by the seed and by what it is. So a part that is
// left out of a scenario does not change what the others draw, and a failure can be shrunk.
#ifndef COFFERDAM_SIM_RANDOM_H_
#define COFFERDAM_SIM_RANDOM_H_

#include <cstdint>

namespace cofferdam::sim {

// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
constexpr uint64_t Mix(uint64_t a, uint64_t b) { return Mix(Mix(a + 0x9e3779b97f4a7c15ULL) ^ (b + 0x9e3779b97f4a7c15ULL)); }

class Random {
 public:
  explicit Random(uint64_t seed, uint64_t purpose = 0, uint64_t index = 0) : state_(Mix(Mix(seed, purpose), index)) {}
  uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15ULL); }
  // 0 to below - 1. REQUIRES: below > 0.
  uint64_t Below(uint64_t below) { return Next() % below; }
  // Both ends are possible.
  uint64_t Between(uint64_t least, uint64_t most) { return least + Below(most - least + 1); }
  bool OneIn(uint64_t count) { return Below(count) == 0; }

 private:
  uint64_t state_;
};

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_RANDOM_H_
