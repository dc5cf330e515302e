// What a worker writes into its tenure log: who took which pages, how it ended, who was refused, and which checks failed.
#ifndef COFFERDAM_WORKER_LEDGER_H_
#define COFFERDAM_WORKER_LEDGER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/error.h"
#include "engine/engine.h"
#include "tenure/log.h"
#include "tenure/recent_holders.h"

namespace cofferdam::worker {

// The engine's thread only. Without a log it writes incidents to the process's log alone, and remembers nothing.
class Ledger {
 public:
  // Whose request it is, as the worker was told by the gateway.
  struct Owner {
    std::string request_id, domain;
    uint64_t prompt_tokens = 0, max_output = 0;
  };

  // `log` may be null.
  explicit Ledger(std::unique_ptr<tenure::Log> log) : log_(std::move(log)) {}

  // All pages of a sequence that has just started.
  void OnStarted(const engine::Engine& engine, SequenceId sequence, const Owner& owner);
  // A page that a sequence took later, or of which it copied.
  void OnTook(SequenceId sequence, PageId page, Generation generation);
  // Its pages were let go; a sequence that is not known, or has ended before, is ignored.
  void OnEnded(SequenceId sequence, tenure::Outcome outcome, uint64_t generated_tokens, uint64_t pages_verified);
  void OnRejected(const Owner& owner, const absl::Status& status);
  // Checks of these pages failed, before the sequence is said to have ended.
  void OnWrong(SequenceId sequence, std::span<const engine::WrongPage> pages, std::string_view action, std::string_view detail);

  // A page of the prefix cache was found wrong, by the scrubber or when it was to be used again.
  void OnCachedWrong(const engine::WrongPage& page);

  // Requests refused, by the code of their error; the codes are ours, so that they are few.
  const std::map<std::string, uint64_t>& refused() const { return refused_; }
  uint64_t incidents() const { return incidents_; }
  uint64_t dropped() const { return log_ == nullptr ? 0 : log_->dropped(); }
  uint64_t errors() const { return log_ == nullptr ? 0 : log_->errors(); }

 private:
  struct Live {
    std::shared_ptr<tenure::RecentHolders::Holder> holder;
    uint64_t prompt_tokens = 0, max_output = 0;
  };
  // Says that a living sequence holds these pages.
  void Took(SequenceId sequence, tenure::Micros time, std::span<const std::pair<PageId, Generation>> tenures);

  std::unique_ptr<tenure::Log> log_;
  std::map<SequenceId, Live> live_;
  tenure::RecentHolders recent_;
  std::map<std::string, uint64_t> refused_ = {
      {"invalid_request", 0}, {std::string(error_code::kContextLengthExceeded), 0}, {std::string(error_code::kQueueFull), 0}};
  uint64_t incidents_ = 0;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_LEDGER_H_
