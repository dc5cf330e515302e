// Zeroed pages outside of any pool, for self-tests, tests and benchmarks.
#ifndef COFFERDAM_MODEL_SCRATCH_PAGES_H_
#define COFFERDAM_MODEL_SCRATCH_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "kv/layout.h"

namespace cofferdam::model {

// The page table of one sequence; owns its pages' payloads. Not thread-safe.
class ScratchPages {
 public:
  ScratchPages(const kv::Layout& layout, uint64_t tokens) : payload_bytes_(layout.payload_bytes()) {
    for (uint64_t i = 0; i < layout.PagesFor(tokens); ++i) {
      auto* page = static_cast<std::byte*>(std::aligned_alloc(64, payload_bytes_));
      CD_CHECK(page != nullptr, "memory for a scratch page");
      pages_.emplace_back(page);
      table_.push_back(page);
    }
    Clear();
  }

  void Clear() {
    for (std::byte* page : table_) std::memset(page, 0, payload_bytes_);
  }
  std::span<std::byte* const> table() const { return table_; }

 private:
  struct Free {
    void operator()(std::byte* page) const { std::free(page); }
  };
  size_t payload_bytes_;
  std::vector<std::unique_ptr<std::byte, Free>> pages_;
  std::vector<std::byte*> table_;
};

}  // namespace cofferdam::model

#endif  // COFFERDAM_MODEL_SCRATCH_PAGES_H_
