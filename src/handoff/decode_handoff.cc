#include "handoff/decode_handoff.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error.h"
#include "base/faults.h"

namespace cofferdam::handoff {
namespace {

absl::Status IntegrityViolation(std::string message) {
  return WithFacts(absl::DataLossError(message), {.code = std::string(error_code::kIntegrity)});
}

}  // namespace

DecodeHandoff::DecodeHandoff(Options options, TransferWindow& window, Time now)
    : options_(std::move(options)),
      window_(window),
      pages_(options_.identities.size(), PageState::kAwaited),
      seals_(pages_.size()),
      last_heard_(now),
      last_progress_(now),
      last_tick_(now) {
  CD_CHECK(options_.covered_tokens >= 1 && options_.page_tokens >= 1, "a prompt of one token opens no stream");
  CD_CHECK(pages_.size() == (options_.covered_tokens + options_.page_tokens - 1) / options_.page_tokens,
           "I5: decode expects exactly the pages of its own tokens");
  CD_CHECK(options_.first_page < pages_.size(), "a handoff of no page opens no stream");
}

bool DecodeHandoff::IsCurrent(const AttemptId& attempt) {
  if (attempt == options_.attempt || FaultIsOn(Fault::kStaleAttempt)) return true;
  ++stale_messages_;
  return false;
}

uint32_t DecodeHandoff::ExpectedTokens(uint32_t ordinal) const {
  if (ordinal + 1 < pages_.size()) return options_.page_tokens;
  return static_cast<uint32_t>(options_.covered_tokens - uint64_t{ordinal} * options_.page_tokens);
}

absl::Status DecodeHandoff::CheckAnnounced(const AnnouncedPage& page) const {
  if (page.ordinal >= pages_.size()) {
    return absl::InternalError(
        absl::StrCat("the prefill worker announced page ", page.ordinal, " of a prompt of ", pages_.size(), " pages"));
  }
  const kv::Seal& seal = page.seal;
  if (seal.layout_id != options_.layout_id) return IntegrityViolation("a page of another layout was announced");
  if (FaultIsOn(Fault::kIdentityNotChecked)) return absl::OkStatus();
  if (seal.identity != options_.identities[page.ordinal] || seal.tokens != ExpectedTokens(page.ordinal)) {
    return IntegrityViolation(absl::StrCat("page ", page.ordinal,
                                           " was announced with the identity of other tokens than this "
                                           "prompt's; do the workers share one cluster secret?"));
  }
  return absl::OkStatus();
}

void DecodeHandoff::OnAdmitted(const AttemptId& attempt, Time now, DecodeActions&) {
  if (IsCurrent(attempt)) last_heard_ = now;
}

void DecodeHandoff::OnHeartbeat(const AttemptId& attempt, uint64_t steps, Time now, DecodeActions&) {
  if (!IsCurrent(attempt)) return;
  last_heard_ = now;
  if (steps != peer_steps_) last_progress_ = now;
  peer_steps_ = steps;
}

void DecodeHandoff::OnAnnounced(const AttemptId& attempt, std::span<const AnnouncedPage> pages, Time now, DecodeActions& actions) {
  if (!IsCurrent(attempt)) return;
  last_heard_ = last_progress_ = now;
  for (const AnnouncedPage& page : pages) {
    if (state_ != State::kRunning) return;
    if (absl::Status status = CheckAnnounced(page); !status.ok()) return FailWith(std::move(status), true, actions);
    if (page.ordinal < options_.first_page || pages_[page.ordinal] != PageState::kAwaited) {  // I4: at most one read per tenure
      ++stale_messages_;
      continue;
    }
    pages_[page.ordinal] = PageState::kQueued;
    ++announced_;
    queue_.push_back(page);
  }
  IssueReads(actions);
}

void DecodeHandoff::OnMalformed(const AttemptId& attempt, const absl::Status& reason, DecodeActions& actions) {
  if (!IsCurrent(attempt)) return;
  OnStreamEnded(absl::UnavailableError(absl::StrCat("the worker sent nonsense: ", reason.message())), actions);
}

void DecodeHandoff::IssueReads(DecodeActions& actions) {
  while (state_ == State::kRunning && !queue_.empty() && window_.TryTake(share_, options_.page_bytes)) {
    AnnouncedPage page = std::move(queue_.front());
    queue_.pop_front();
    CD_CHECK(pages_[page.ordinal] == PageState::kQueued, "I4: a page is read once");
    pages_[page.ordinal] = PageState::kReading;
    seals_[page.ordinal] = page.seal;
    ++reads_out_;
    actions.push_back(IssueRead{
        .page = page, .expected_identity = options_.identities[page.ordinal], .expected_tokens = ExpectedTokens(page.ordinal)});
  }
}

void DecodeHandoff::EndRead(uint32_t ordinal) {
  CD_CHECK(ordinal < pages_.size() && pages_[ordinal] == PageState::kReading && reads_out_ > 0, "a read ends once");
  --reads_out_;
  read_ended_ = true;
  window_.Give(share_, options_.page_bytes);
  pages_[ordinal] = PageState::kDone;  // no second read of it, whatever comes
}

void DecodeHandoff::OnReadDone(uint32_t ordinal, const kv::Arrival& arrival, DecodeActions& actions) {
  EndRead(ordinal);
  const auto* verified = std::get_if<kv::Verified>(&arrival);
  if (state_ == State::kRunning && verified == nullptr) {
    const std::string reason(ToString(std::get<kv::SealFault>(arrival)));
    FailWith(IntegrityViolation(absl::StrCat("page ", ordinal, " arrived with a bad seal (", reason, ")")), true, actions);
  } else if (state_ == State::kRunning) {
    CD_CHECK(verified->seal() == seals_[ordinal], "I4: what was verified is what was announced and read");
    IssueReads(actions);  // before Adopt, which may fail
    ++adopted_;
    actions.push_back(Adopt{.ordinal = ordinal, .page = *verified});
    const bool covered = FaultIsOn(Fault::kCoverageByPeer) ? adopted_ == announced_ : covered_pages() == pages_.size();
    if (covered) {
      CD_CHECK(reads_out_ == 0 && queue_.empty(), "I5: nothing is out when everything is covered");
      state_ = State::kComplete;
      actions.push_back(CloseStream{});
      actions.push_back(Complete{});
    }
  }
  ReleaseWhenQuiet(actions);
}

void DecodeHandoff::OnReadFailed(uint32_t ordinal, const absl::Status& status, DecodeActions& actions) {
  EndRead(ordinal);
  if (state_ == State::kRunning) {
    FailWith(absl::UnavailableError(absl::StrCat("page ", ordinal, " could not be read: ", status.message())), true, actions);
  }
  ReleaseWhenQuiet(actions);
}

void DecodeHandoff::OnAdoptFailed(const absl::Status& status, DecodeActions& actions) {
  if (state_ == State::kFailed) return;  // final, whatever the reason was
  // It may have been the last page: Complete, if it stands behind this Adopt, must not be acted on by the driver.
  CD_CHECK(adopted_ > 0, "only an Adopt can fail");
  --adopted_;
  state_ = State::kRunning;
  FailWith(status, false, actions);
}

void DecodeHandoff::OnStreamEnded(const absl::Status& status, DecodeActions& actions) {
  if (state_ != State::kRunning) return;
  if (FaultIsOn(Fault::kEndIsSuccess) && status.ok() && reads_out_ == 0 && queue_.empty()) {
    state_ = State::kComplete;
    actions.push_back(CloseStream{});
    return actions.push_back(Complete{});
  }
  // I5: even a stream that ends well has failed when it ends before coverage. Refusals go on to the client unchanged.
  const bool refusal = absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status);
  FailWith(status.ok() ? absl::UnavailableError("the prefill worker ended the stream before all pages were covered") : status,
           !refusal, actions);
}

void DecodeHandoff::OnCancel(DecodeActions& actions) {
  if (state_ == State::kRunning) FailWith(absl::CancelledError("the request was cancelled"), false, actions);
}

void DecodeHandoff::OnWindowFree(DecodeActions& actions) { IssueReads(actions); }

void DecodeHandoff::OnTick(Time now, DecodeActions& actions) {
  if (now - last_tick_ > options_.silence_limit / 2) last_heard_ = last_progress_ = now;
  last_tick_ = now;
  if (std::exchange(read_ended_, false)) last_progress_ = now;
  const bool stalled = now - last_progress_ > options_.stall_limit;
  if (state_ == State::kFailed && reads_out_ > 0 && stalled) ClosePeerOnce(actions);  // else they might never end
  if (state_ != State::kRunning) return;
  IssueReads(actions);
  // Waiting for our own window alone is not the peer's fault.
  if (reads_out_ == 0 && options_.first_page + announced_ == pages_.size()) last_progress_ = now;
  const bool silent = now - last_heard_ > options_.silence_limit;
  if (!silent && now - last_progress_ <= options_.stall_limit) return;
  // A timeout closes; it frees nothing. Reads that hang end because their connection goes.
  ClosePeerOnce(actions);
  FailWith(absl::UnavailableError(silent ? "the prefill worker went silent" : "the prefill worker makes no progress"), true,
           actions);
}

void DecodeHandoff::FailWith(absl::Status status, bool retry_elsewhere, DecodeActions& actions) {
  CD_CHECK(state_ == State::kRunning, "I12: a handoff fails once, and not after it is complete");
  state_ = State::kFailed;
  queue_.clear();
  window_.StopWaiting(share_);
  last_progress_ = last_tick_;  // own reads have the stall limit to end by themselves
  actions.push_back(CloseStream{});
  actions.push_back(Fail{.status = std::move(status), .retry_elsewhere = retry_elsewhere});
  ReleaseWhenQuiet(actions);
}

void DecodeHandoff::ClosePeerOnce(DecodeActions& actions) {
  if (!std::exchange(peer_closed_, true)) actions.push_back(ClosePeer{});
}

void DecodeHandoff::ReleaseWhenQuiet(DecodeActions& actions) {
  const bool at_once = FaultIsOn(Fault::kFreeAtTimeout);
  if (state_ != State::kFailed || (reads_out_ > 0 && !at_once) || released_) return;
  CD_CHECK(share_.held_bytes() == 0 || at_once, "I7: nothing is in flight into pages that are released");
  released_ = true;
  actions.push_back(ReleasePages{});
}

}  // namespace cofferdam::handoff
