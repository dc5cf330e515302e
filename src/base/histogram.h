// Counts of durations in buckets, as Prometheus wants them.
#ifndef COFFERDAM_BASE_HISTOGRAM_H_
#define COFFERDAM_BASE_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace cofferdam {

// Not thread-safe.
class SecondsHistogram {
 public:
  static constexpr std::array<double, 11> kBounds = {1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 10, 60};

  void Observe(double seconds) {
    ++counts_[static_cast<size_t>(std::ranges::lower_bound(kBounds, seconds) - kBounds.begin())];
    sum_ += seconds;
  }
  // Observations up to kBounds[i], and at the end all of them.
  std::array<uint64_t, kBounds.size() + 1> Cumulative() const {
    auto counts = counts_;
    for (size_t i = 1; i < counts.size(); ++i) counts[i] += counts[i - 1];
    return counts;
  }
  double sum_seconds() const { return sum_; }
  uint64_t count() const { return Cumulative().back(); }

 private:
  std::array<uint64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
};

}  // namespace cofferdam

#endif  // COFFERDAM_BASE_HISTOGRAM_H_
