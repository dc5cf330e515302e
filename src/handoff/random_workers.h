// The workers of random_world.h: real pools in memory of their own, without engines, servers or threads.
#ifndef COFFERDAM_HANDOFF_RANDOM_WORKERS_H_
#define COFFERDAM_HANDOFF_RANDOM_WORKERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "handoff/random_choices.h"
#include "handoff/testing.h"
#include "handoff/transfer_window.h"
#include "kv/admission.h"
#include "kv/pool.h"

namespace cofferdam::handoff::testing {

// How often each rare branch was reached.
using Marks = std::map<std::string_view, uint64_t>;

// What everybody in one schedule shares.
struct Setting {
  Choices& choices;
  Marks& marks;
  std::function<void(const char*)> broken;  // told once, with the invariant that does not hold
  uint64_t faults = 0;                      // in thousandths, at a rate that differs between schedules
  Time now{};
  bool failed = false;

  uint64_t Draw(uint64_t below) { return choices.Below(below); }
  bool Chance(uint64_t one_in) { return Draw(one_in) == 0; }
  bool Fault() { return choices.Happens(faults); }
  void Mark(std::string_view literal) { ++marks[literal]; }
  void Expect(bool holds, const char* invariant) {
    if (holds || std::exchange(failed, true)) return;
    broken(invariant);
  }
};

// What a page of these tokens holds after it was computed: a function of its identity.
inline void Compute(const kv::Digest128& identity, uint32_t tokens, std::span<std::byte> payload) {
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>((identity[i % identity.size()] ^ (i * 31)) | 1);
  kv::ZeroBeyond(SmallLayout(), payload, tokens);
}
inline bool IsComputed(const kv::Digest128& identity, uint32_t tokens, std::span<const std::byte> payload) {
  std::vector<std::byte> expected(payload.size());
  Compute(identity, tokens, expected);
  return std::equal(expected.begin(), expected.end(), payload.begin());
}

// A pool, and the step that may still touch its pages.
class Memory {
 public:
  Memory(Setting& setting, uint64_t boot_id, uint64_t pages)
      : setting_(setting),
        bytes_(pages * SmallLayout().page_bytes()),
        admission_("test", SmallLayout(), pages * kPageTokens),
        pool_(SmallLayout(), bytes_, boot_id, setting.Chance(2) ? kv::ReuseOrder::kFifo : kv::ReuseOrder::kLifo) {}

  kv::Pool& pool() { return pool_; }
  std::span<std::byte> bytes() { return bytes_; }

  // As an engine starts a sequence: admission and reservation are one action. The pages hold nothing of anybody.
  enum class Answer { kYes, kWait, kNever };
  Answer Reserve(uint64_t tokens, std::vector<kv::PageHandle>& into) {
    kv::AdmissionResult result = admission_.Admit({.prompt_tokens = tokens}, pool_.counts());
    if (std::holds_alternative<kv::Rejected>(result)) return Answer::kNever;
    if (std::holds_alternative<kv::MustWait>(result)) return Answer::kWait;
    auto pages = pool_.Reserve(std::get<kv::Admitted>(std::move(result)));
    setting_.Expect(pages.has_value(), "what was admitted can be reserved");
    if (!pages.has_value()) return Answer::kWait;
    for (const kv::PageHandle& page : *pages)
      setting_.Expect(kv::IsZero(pool_.Payload(page.page())), "I7: a page that is handed out holds nothing");
    into = *std::move(pages);
    return Answer::kYes;
  }
  void Release(std::vector<kv::PageHandle>& pages) {
    for (kv::PageHandle& page : pages) {
      if (page.held()) pool_.Release(std::move(page), StepEpoch(begun_));
    }
    pages.clear();
  }
  void BeginStep() { ++begun_; }
  void EndStep() { ended_ = begun_; }
  bool stepping() const { return ended_ < begun_; }
  void Reclaim() {
    pool_.Reclaim(StepEpoch(ended_));
    pool_.CheckConservation();
  }
  bool NobodyHoldsAPage() const {
    const kv::PoolCounts& counts = pool_.counts();
    return counts.free() == counts.usable();
  }

 private:
  Setting& setting_;
  std::vector<std::byte> bytes_;
  const kv::Admission admission_;
  kv::Pool pool_;
  uint64_t begun_ = 0, ended_ = 0;
};

class Transfer;

// A prefill worker: its memory, its window at the decode worker, and the connection through which that one reads.
struct Source {
  Source(Setting& setting, uint64_t boot_id, uint64_t pages, size_t window_bytes, TransferWindow* cap)
      : memory(setting, boot_id, pages), window_bytes(window_bytes), window(window_bytes, cap) {}

  struct Write {
    Transfer* transfer = nullptr;
    uint32_t ordinal = 0;
    PageId page;
  };
  Memory memory;
  const size_t window_bytes;
  TransferWindow window;
  TransferWindow::Share other;  // bytes that somebody else holds
  std::shared_ptr<bool> reader_closed = std::make_shared<bool>(false);
  std::vector<Write> step;  // under way
  uint64_t steps = 0;
};

}  // namespace cofferdam::handoff::testing

#endif  // COFFERDAM_HANDOFF_RANDOM_WORKERS_H_
