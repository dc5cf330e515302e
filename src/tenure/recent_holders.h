// The last holders of every page of a pool: what a worker remembers for the record of an incident.
#ifndef COFFERDAM_TENURE_RECENT_HOLDERS_H_
#define COFFERDAM_TENURE_RECENT_HOLDERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/strong_id.h"
#include "tenure/record.h"

namespace cofferdam::tenure {

// One thread calls everything. Bounded for each page: the log on disk has the rest.
class RecentHolders {
 public:
  static constexpr size_t kGenerations = 4;        // of a page
  static constexpr size_t kHolders = kMaxSharers;  // of a generation
  static_assert(kGenerations * kHolders <= kMaxEarlier);

  // A sequence that holds pages, shared by all of them. `ended` is 0 until it lets go of them.
  struct Holder {
    SequenceId sequence{};
    std::string request_id{}, domain{};
    Micros started = 0, ended = 0;
  };

  // `holder` is not null. REQUIRES: it was not added to that page and generation before.
  void Add(const PageTenure& tenure, std::shared_ptr<const Holder> holder);
  // Fills in `earlier`, `sharers` and what was left off, by the incident's page, expected generation and sequence.
  void Describe(Incident& incident) const;

 private:
  struct Shared {
    Generation generation{};
    std::vector<std::shared_ptr<const Holder>> holders{};  // oldest first, at most kHolders
    uint64_t left_off = 0;                                 // holders that are not in it any more
  };

  std::vector<std::vector<Shared>> pages_;  // newest generation first, at most kGenerations
};

}  // namespace cofferdam::tenure

#endif  // COFFERDAM_TENURE_RECENT_HOLDERS_H_
