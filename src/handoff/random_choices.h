// Where the schedules of random_world.h come from: a seed, or bytes that a fuzzer changes one by one.
#ifndef COFFERDAM_HANDOFF_RANDOM_CHOICES_H_
#define COFFERDAM_HANDOFF_RANDOM_CHOICES_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>

namespace cofferdam::handoff::testing {

// One thread.
class Choices {
 public:
  virtual ~Choices() = default;
  // REQUIRES: 1 <= n <= 65536.
  virtual uint64_t Below(uint64_t n) = 0;
  // Whether something that happens so often in a thousand happens now.
  virtual bool Happens(uint64_t per_mille) = 0;
  // Nothing is left to choose by: from now on it is always 0, and nothing happens.
  virtual bool over() const = 0;
};

class RandomChoices final : public Choices {
 public:
  explicit RandomChoices(uint64_t seed) : random_(seed) {}
  uint64_t Below(uint64_t n) override { return random_() % n; }
  bool Happens(uint64_t per_mille) override { return Below(1000) < per_mille; }
  bool over() const override { return false; }

 private:
  std::mt19937_64 random_;
};

// A byte a choice, or two where there is more to choose from. `bytes` outlives it.
class ByteChoices final : public Choices {
 public:
  explicit ByteChoices(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  uint64_t Below(uint64_t n) override {
    const uint64_t low = Next();
    return (n <= 256 ? low : low + 256 * uint64_t{Next()}) % n;
  }
  // What is rare for a seed is not for a fuzzer: it keeps the byte when something new comes of it.
  bool Happens(uint64_t per_mille) override { return per_mille > 0 && !over() && Next() < per_mille / 4 + 1; }
  bool over() const override { return bytes_.empty(); }

 private:
  uint8_t Next() {
    if (bytes_.empty()) return 0;
    const uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }
  std::span<const uint8_t> bytes_;
};

}  // namespace cofferdam::handoff::testing

#endif  // COFFERDAM_HANDOFF_RANDOM_CHOICES_H_
