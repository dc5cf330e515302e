#include "tenure/recent_holders.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace cofferdam::tenure {

void RecentHolders::Add(const PageTenure& tenure, std::shared_ptr<const Holder> holder) {
  if (tenure.page.value() >= pages_.size()) pages_.resize(size_t{tenure.page.value()} + 1);
  std::vector<Shared>& generations = pages_[tenure.page.value()];
  auto found = std::ranges::find(generations, tenure.generation, &Shared::generation);
  if (found == generations.end()) {
    if (generations.size() == kGenerations) generations.pop_back();
    found = generations.insert(generations.begin(), Shared{.generation = tenure.generation});
  }
  auto& holders = found->holders;
  if (holders.size() >= kHolders) {
    // Those that still hold the page matter most.
    const auto ended = std::ranges::find_if(holders, [](const auto& other) { return other->ended != 0; });
    holders.erase(ended != holders.end() ? ended : holders.begin());
    ++found->left_off;
  }
  holders.push_back(std::move(holder));
}

void RecentHolders::Describe(Incident& incident) const {
  if (incident.page.value() >= pages_.size()) return;
  for (const Shared& shared : pages_[incident.page.value()]) {
    const bool same = shared.generation == incident.expected_generation;
    std::vector<RememberedTenure>& list = same ? incident.sharers : incident.earlier;
    uint64_t& more = same ? incident.more_sharers : incident.more_earlier;
    bool has_owner = false;
    for (const auto& holder : shared.holders | std::views::reverse) {
      if (same && holder->sequence == incident.sequence) {
        has_owner = true;
        continue;
      }
      list.push_back({.tenure = {.page = incident.page, .generation = shared.generation},
                      .sequence = holder->sequence,
                      .request_id = holder->request_id,
                      .domain = holder->domain,
                      .started = holder->started,
                      .ended = holder->ended});
    }
    // The incident's own sequence may be one of those that were left off; it is no sharer.
    const bool owner_left_off = same && !has_owner && incident.sequence != SequenceId() && shared.left_off > 0;
    more += shared.left_off - (owner_left_off ? 1 : 0);
  }
}

}  // namespace cofferdam::tenure
