#include "handoff/prefill_handoff.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/faults.h"

namespace cofferdam::handoff {

PrefillHandoff::PrefillHandoff(const Options& options, Time now)
    : options_(options), last_heard_(now), last_progress_(now), last_tick_(now) {
  CD_CHECK(options_.pages >= 1, "a prompt without tokens opens no stream");
}

void PrefillHandoff::OnReserved(PrefillActions& actions) {
  CD_CHECK(state_ != State::kRunning && !std::exchange(reserved_, true), "pages are reserved once");
  if (state_ == State::kClosed) return actions.push_back(Unpin{});
  pinned_ = true;
  if (state_ == State::kEnding) return;  // let go when the stream is closed
  state_ = State::kRunning;
  actions.push_back(SendAdmitted{.pages = options_.pages});
}

void PrefillHandoff::OnRefused(absl::Status status, PrefillActions& actions) {
  CD_CHECK(!pinned_, "I1: a refused request owns nothing");
  End(std::move(status), actions);
}

void PrefillHandoff::OnSealed(std::vector<AnnouncedPage> pages, PrefillActions& actions) {
  if (state_ != State::kRunning) return;
  CD_CHECK(pinned_, "pages are announced while they are pinned");
  for (const AnnouncedPage& page : pages) {
    CD_CHECK(page.ordinal == next_page_ && page.ordinal < options_.pages, "each page is sealed once, in order");
    ++next_page_;
  }
  std::erase_if(pages, [&](const AnnouncedPage& page) { return page.ordinal < options_.first_page; });
  if (!pages.empty()) actions.push_back(SendSealed{.pages = std::move(pages)});
  if (FaultIsOn(Fault::kPinDroppedEarly) && next_page_ == options_.pages) {
    pinned_ = false;
    actions.push_back(Unpin{});
  }
}

void PrefillHandoff::OnComputeFailed(absl::Status status, PrefillActions& actions) {
  pinned_ = false;
  End(std::move(status), actions);
}

void PrefillHandoff::OnPeerHeartbeat(uint32_t covered_pages, Time now) {
  last_heard_ = now;
  if (covered_pages > std::max(next_page_, options_.first_page)) {
    ++wrong_messages_;
  } else if (covered_pages > covered_pages_) {
    covered_pages_ = covered_pages;
    last_progress_ = now;
  }
}

void PrefillHandoff::OnTick(Time now, PrefillActions& actions) {
  if (now - last_tick_ > options_.silence_limit / 2) last_heard_ = last_progress_ = now;
  last_tick_ = now;
  if (state_ == State::kEnding || state_ == State::kClosed) return;
  // Pages still being computed are not decode's to cover.
  if (next_page_ <= std::max(covered_pages_, options_.first_page)) last_progress_ = now;
  if (now - last_heard_ > options_.silence_limit) {
    End(absl::DeadlineExceededError("the decode worker went silent"), actions);
  } else if (now - last_progress_ > options_.progress_limit) {
    End(absl::DeadlineExceededError("the decode worker does not read the pages that are held for it"), actions);
  }
}

void PrefillHandoff::End(absl::Status status, PrefillActions& actions) {
  if (state_ == State::kEnding || state_ == State::kClosed) return;
  CD_CHECK(!status.ok(), "prefill never ends a stream well; decode does");
  state_ = State::kEnding;
  actions.push_back(EndStream{.status = std::move(status)});
}

void PrefillHandoff::OnStreamClosed(PrefillActions& actions) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  if (!std::exchange(pinned_, false)) return;
  actions.push_back(Unpin{});
}

}  // namespace cofferdam::handoff
