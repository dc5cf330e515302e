#include "worker/ledger.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "tenure/time.h"

namespace cofferdam::worker {

void Ledger::OnStarted(const engine::Engine& engine, SequenceId sequence, const Owner& owner) {
  auto holder = std::make_shared<tenure::RecentHolders::Holder>(tenure::RecentHolders::Holder{
      .sequence = sequence, .request_id = owner.request_id, .domain = owner.domain, .started = tenure::WallClock()});
  const tenure::Micros time = holder->started;
  live_.emplace(sequence, Live{.holder = std::move(holder), .prompt_tokens = owner.prompt_tokens, .max_output = owner.max_output});
  Took(sequence, time, engine.TenuresOf(sequence));
}

void Ledger::OnTook(SequenceId sequence, PageId page, Generation generation) {
  const std::pair tenure{page, generation};
  if (live_.contains(sequence)) Took(sequence, tenure::WallClock(), {&tenure, 1});
}

void Ledger::Took(SequenceId sequence, tenure::Micros time, std::span<const std::pair<PageId, Generation>> tenures) {
  const Live& live = live_.at(sequence);
  // Every record says whose it is: the first one may have been in a file that was deleted since.
  tenure::Started record{.stamp = {.time = time},
                         .sequence = sequence,
                         .request_id = live.holder->request_id,
                         .domain = live.holder->domain,
                         .prompt_tokens = live.prompt_tokens,
                         .max_output = live.max_output};
  for (const auto& [page, generation] : tenures) {
    record.pages.push_back({.page = page, .generation = generation});
    recent_.Add(record.pages.back(), live.holder);
  }
  if (log_ != nullptr) log_->Append(std::move(record));
}

void Ledger::OnEnded(SequenceId sequence, tenure::Outcome outcome, uint64_t generated_tokens, uint64_t pages_verified) {
  const auto found = live_.find(sequence);
  if (found == live_.end()) return;
  tenure::RecentHolders::Holder& holder = *found->second.holder;
  holder.ended = tenure::WallClock();
  if (log_ != nullptr) {
    log_->Append(tenure::Ended{.stamp = {.time = holder.ended},
                               .sequence = sequence,
                               .outcome = outcome,
                               .generated_tokens = generated_tokens,
                               .pages_verified = pages_verified});
  }
  live_.erase(found);
}

void Ledger::OnRejected(const Owner& owner, const absl::Status& status) {
  const std::optional<ErrorFacts> facts = FactsOf(status);
  const std::string code = facts.has_value() && !facts->code.empty() ? facts->code : "invalid_request";
  ++refused_[code];
  if (log_ == nullptr) return;
  log_->Append(tenure::Rejected{.request_id = owner.request_id,
                                .domain = owner.domain,
                                .prompt_tokens = owner.prompt_tokens,
                                .max_output = owner.max_output,
                                .code = code});
}

void Ledger::OnWrong(SequenceId sequence, std::span<const engine::WrongPage> pages, std::string_view action,
                     std::string_view detail) {
  const auto live = live_.find(sequence);
  for (const engine::WrongPage& page : pages) {
    ++incidents_;
    tenure::Incident incident{.sequence = sequence,
                              .check = std::string(kv::ToString(page.kind)),
                              .page = page.page,
                              .expected_generation = page.expected,
                              .found_generation = page.kind == kv::CheckKind::kTags ? page.in_memory : page.found,
                              .action = std::string(action),
                              .detail = std::string(detail)};
    if (live != live_.end()) {
      incident.request_id = live->second.holder->request_id;
      incident.domain = live->second.holder->domain;
    }
    recent_.Describe(incident);
    log::error("incident: check {} failed on page {} of request {}: expected generation {}, found {}; {}", incident.check,
               page.page.value(), incident.request_id, page.expected.value(), incident.found_generation.value(), incident.action);
    if (log_ != nullptr) log_->Append(std::move(incident));
  }
}

void Ledger::OnCachedWrong(const engine::WrongPage& page) {
  OnWrong(SequenceId(), {&page, 1}, tenure::kActionQuarantined, "a cached page, found by the scrubber or when it was used again");
}

}  // namespace cofferdam::worker
