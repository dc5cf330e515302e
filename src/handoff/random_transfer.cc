#include "handoff/random_transfer.h"

#include <algorithm>
#include <utility>

namespace cofferdam::handoff::testing {
namespace {

DecodeHandoff::Options DecodeOptions(const AttemptId& attempt, const Request& request,
                                     const std::vector<kv::Digest128>& identities) {
  return {.attempt = attempt,
          .layout_id = LayoutId(),
          .identities = identities,
          .covered_tokens = request.tokens.size(),
          .first_page = request.first_page,
          .page_tokens = kPageTokens,
          .page_bytes = SmallLayout().payload_bytes(),
          .silence_limit = milliseconds(300),
          .stall_limit = milliseconds(1000)};
}

}  // namespace

Transfer::Transfer(Setting& setting, Memory& sink, Source& source, const AttemptId& attempt, const Request& request,
                   std::vector<kv::PageHandle> own)
    : setting_(setting),
      sink_(sink),
      source_(source),
      attempt_(attempt),
      request_(request),
      identities_(kv::PageIdentities(request.domain_key, SmallLayout(), request.tokens)),
      pages_(static_cast<uint32_t>(identities_.size())),
      decode_(DecodeOptions(attempt, request, identities_), source.window, setting.now),
      prefill_({.pages = pages_,
                .first_page = request.first_page,
                .silence_limit = milliseconds(300),
                .progress_limit = milliseconds(1000)},
               setting.now),
      reader_closed_(source.reader_closed),
      own_(std::move(own)) {}

uint32_t Transfer::TokensOf(uint32_t ordinal) const {
  return static_cast<uint32_t>(std::min<uint64_t>(kPageTokens, request_.tokens.size() - uint64_t{ordinal} * kPageTokens));
}

// ---- the prefill worker

void Transfer::AskForPages() {
  // A pool's answer can cross the end of its stream.
  if (answered_ || (prefill_.closed() && !setting_.Chance(4))) return;
  PrefillActions actions;
  const bool refused = setting_.Fault();
  const Memory::Answer answer = refused ? Memory::Answer::kNever : source_.memory.Reserve(request_.tokens.size(), held_);
  if (answer == Memory::Answer::kWait) return setting_.Mark("waited for pages");
  answered_ = true;
  if (answer == Memory::Answer::kNever) {
    setting_.Mark("refused");
    if (!prefill_.closed()) prefill_.OnRefused(absl::ResourceExhaustedError("full"), actions);
  } else {
    if (prefill_.closed()) setting_.Mark("reserved after the stream was closed");
    prefill_.OnReserved(actions);
  }
  Perform(actions);
}

void Transfer::BeginStep(std::vector<Source::Write>& step) {
  if (held_.empty()) return;
  for (uint64_t n = 1 + setting_.Draw(3); n > 0 && computing_ < pages_; --n, ++computing_) {
    source_.memory.pool().MarkFilling(held_[computing_]);
    step.push_back({.transfer = this, .ordinal = computing_, .page = held_[computing_].page()});
  }
}

void Transfer::EndStep(uint32_t pages) {
  PrefillActions actions;
  if (held_.empty()) {  // let go while the step ran; what it computed belongs to nobody
    if (prefill_.closed()) setting_.Mark("a step ended after the stream was closed");
    std::vector<AnnouncedPage> late;
    for (uint32_t i = computing_ - pages; i < computing_; ++i) late.push_back({.ordinal = i, .source = {}, .seal = {}});
    prefill_.OnSealed(std::move(late), actions);
    return Perform(actions);
  }
  if (setting_.Fault()) {
    setting_.Mark("computation failed");
    ++unpinned_;
    source_.memory.Release(held_);
    prefill_.OnComputeFailed(absl::DataLossError("tag"), actions);
    return Perform(actions);
  }
  kv::Pool& pool = source_.memory.pool();
  std::vector<AnnouncedPage> sealed;
  for (uint32_t i = computing_ - pages; i < computing_; ++i) {
    const kv::PageHandle& page = held_[i];
    sealed.push_back(
        {.ordinal = i,
         .source = {.region = pool.boot_id(), .offset = pool.PayloadOffset(page.page()), .generation = page.generation().value()},
         .seal = pool.SealPage(page, identities_[i], TokensOf(i))});
  }
  sealed_.insert(sealed_.end(), sealed.begin(), sealed.end());
  prefill_.OnSealed(std::move(sealed), actions);
  Perform(actions);
}

void Transfer::Perform(const PrefillActions& actions) {
  for (const PrefillAction& action : actions) {
    if (const auto* sealed = std::get_if<SendSealed>(&action)) {
      setting_.Expect(!prefill_.closed(), "nothing is announced on a closed stream");
      for (const AnnouncedPage& page : sealed->pages) {
        setting_.Expect(page.ordinal == std::max(request_.first_page, announced_), "each page is announced once, in order");
        announced_ = page.ordinal + 1;
      }
      if (stream_open_) to_decode_.push_back({.attempt = attempt_, .pages = sealed->pages});
      last_message_ = {.attempt = attempt_, .pages = sealed->pages};
    }
    if (const auto* end = std::get_if<EndStream>(&action)) {
      setting_.Expect(!end->status.ok(), "prefill never ends a stream well");
      setting_.Expect(++prefill_ends_ == 1, "prefill ends a stream once");
      if (stream_open_) stream_end_ = end->status;
      stream_open_ = false;
    }
    if (std::holds_alternative<Unpin>(action)) {
      setting_.Expect(prefill_.closed(), "L6: the pin lives as long as the stream");
      setting_.Expect(++unpinned_ == 1, "L7: what is pinned is let go once");
      if (!reads_.empty()) setting_.Mark("unpinned under a reader");
      source_.memory.Release(held_);
    }
  }
  setting_.Expect(unpinned_ <= 1, "L7: what is pinned is let go once");
  setting_.Expect(prefill_.pinned() == !held_.empty(), "who is pinned holds pages, and nobody else does");
}

// ---- the network

void Transfer::DeliverToDecode() {
  DecodeActions actions;
  if (!to_decode_.empty()) {
    Announcement message = to_decode_.front();
    if (setting_.Fault()) {
      setting_.Mark("announced twice");
    } else {
      to_decode_.pop_front();
    }
    if (setting_.Fault()) Corrupt(message.pages.at(setting_.Draw(message.pages.size())));
    decode_.OnAnnounced(message.attempt, message.pages, setting_.now, actions);
  } else if (stream_end_.has_value() && !std::exchange(decode_told_, true)) {
    if (decode_.running()) setting_.Mark("decode learnt of the stream's end before coverage");
    decode_.OnStreamEnded(*stream_end_, actions);
    setting_.Expect(!decode_.running(), "I5: a stream that has ended covers no more");
  }
  Perform(actions);
}

void Transfer::DeliverLate(const Announcement& message) {
  if (message.attempt == attempt_) return;
  setting_.Mark("a message of an earlier attempt");
  const uint64_t before = decode_.stale_messages();
  DecodeActions actions;
  decode_.OnAnnounced(message.attempt, message.pages, setting_.now, actions);
  setting_.Expect(actions.empty() && decode_.stale_messages() == before + 1, "I8: a message of another attempt has no effect");
}

void Transfer::Corrupt(AnnouncedPage& page) {
  setting_.Mark("wrong announcement");
  switch (setting_.Draw(7)) {
    case 0:
      page.ordinal = pages_ + static_cast<uint32_t>(setting_.Draw(3));
      break;
    case 1:
      page.seal.identity[2] ^= 1;
      break;
    case 2:
      page.seal.tokens ^= 1;
      break;
    case 3:
      page.seal.layout_id[0] ^= 1;
      break;
    case 4:
      page.seal.checksum ^= 1;
      break;
    case 5:  // another page, perhaps of another tenant, or none at all
      page.source.offset += (setting_.Draw(8) - 4) * SmallLayout().page_bytes();
      break;
    default:
      page.source.region ^= 1;
  }
}

void Transfer::DeliverToPrefill() {
  if (stream_open_ || prefill_.closed()) return;
  PrefillActions actions;
  prefill_.OnStreamClosed(actions);
  Perform(actions);
}

void Transfer::BreakStream() {
  if (!stream_open_) return;
  stream_open_ = false;
  stream_end_ = setting_.Chance(3) ? absl::OkStatus() : absl::UnavailableError("broken");
  while (!to_decode_.empty() && setting_.Chance(2)) to_decode_.pop_back();  // what was on its way is lost
}

void Transfer::Heartbeats() {
  if (!stream_open_) return;
  DecodeActions actions;
  prefill_.OnPeerHeartbeat(setting_.Fault() ? ~0u : decode_.covered_pages(), setting_.now);
  AttemptId attempt = attempt_;
  if (setting_.Fault()) --attempt.counter;
  if (setting_.Chance(4)) decode_.OnAdmitted(attempt, setting_.now, actions);
  decode_.OnHeartbeat(attempt, source_.steps, setting_.now, actions);
  Perform(actions);
}

// ---- the fabric: reads go on and end in any order

bool Transfer::Copy(Read& read, size_t up_to) {
  const RemotePage& from = read.asked.page.source;
  const std::span<std::byte> to = sink_.pool().Payload(read.at);
  const std::span<const std::byte> region = source_.memory.bytes();
  if (from.region != source_.memory.pool().boot_id()) return false;
  if (from.offset > region.size() || to.size() > region.size() - from.offset) return false;
  setting_.Expect(sink_.pool().GenerationOf(read.at) == read.tenure, "I7: a read lands in the tenure that it was issued for");
  std::copy(region.begin() + static_cast<ptrdiff_t>(from.offset + read.copied),
            region.begin() + static_cast<ptrdiff_t>(from.offset + up_to), to.begin() + static_cast<ptrdiff_t>(read.copied));
  read.copied = up_to;
  return true;
}

void Transfer::Judge(Read& read) {
  const std::span<std::byte> payload = sink_.pool().Payload(read.at);
  if (setting_.Fault()) payload[setting_.Draw(payload.size())] ^= static_cast<std::byte>(1 << setting_.Draw(8));
  const IssueRead& asked = read.asked;
  read.arrival = kv::VerifyArrived(SmallLayout(), {.page = read.at, .generation = read.tenure, .payload = payload}, asked.page.seal,
                                   asked.expected_identity, asked.expected_tokens);
  if (std::holds_alternative<kv::SealFault>(*read.arrival)) return setting_.Mark("bits flipped");
  setting_.Expect(IsComputed(asked.expected_identity, asked.expected_tokens, payload),
                  "I4: what is verified is what was computed for these tokens");
}

bool Transfer::AdvanceRead(const std::optional<absl::Status>& forced) {
  if (reads_.empty()) return false;
  const auto chosen = std::next(reads_.begin(), static_cast<std::ptrdiff_t>(setting_.Draw(reads_.size())));
  const uint32_t ordinal = chosen->first;
  Read& read = chosen->second;
  if (!read.arrival.has_value()) {
    const size_t whole = sink_.pool().Payload(read.at).size();
    const uint64_t how = setting_.Draw(6);  // 0: half of it; 1: all of it, but nobody is told yet
    const bool fails = forced.has_value() || *read.closed || setting_.Fault();
    if (fails || !Copy(read, how == 0 && read.copied == 0 ? whole / 2 : whole)) {
      EndRead(ordinal, forced.value_or(absl::UnavailableError("gone")));
      return true;
    }
    if (read.copied < whole) return false;
    Judge(read);
    if (how == 1) return false;
  }
  EndRead(ordinal, std::nullopt);
  return true;
}

void Transfer::EndRead(uint32_t ordinal, const std::optional<absl::Status>& failed) {
  const Read read = std::move(reads_.at(ordinal));
  reads_.erase(ordinal);
  sink_.pool().EndTransfer(read.at, read.tenure);
  DecodeActions actions;
  if (!decode_.running()) setting_.Mark("a read ended after the end");
  if (failed.has_value()) {
    setting_.Mark("a read failed");
    decode_.OnReadFailed(ordinal, *failed, actions);
  } else {
    decode_.OnReadDone(ordinal, *read.arrival, actions);
  }
  Perform(actions);
}

void Transfer::OfferWindow() {
  DecodeActions actions;
  if (decode_.waiting_for_window()) setting_.Mark("waited for the window");
  decode_.OnWindowFree(actions);
  Perform(actions);
}

// ---- clocks and people

void Transfer::Tick() {
  DecodeActions decode_actions;
  PrefillActions prefill_actions;
  decode_.OnTick(setting_.now, decode_actions);
  prefill_.OnTick(setting_.now, prefill_actions);
  if (Count<EndStream>(prefill_actions) > 0) setting_.Mark("prefill gave decode up");
  Perform(decode_actions);
  Perform(prefill_actions);
}

void Transfer::Cancel() {
  DecodeActions actions;
  if (decode_.running()) setting_.Mark(decode_.reads_out() > 0 ? "cancelled with reads out" : "cancelled");
  if (decode_.complete()) setting_.Mark("cancelled after completion");
  decode_.OnCancel(actions);
  Perform(actions);
}

AnnouncedPage Transfer::AnyPage() {
  if (!sealed_.empty()) return sealed_[setting_.Draw(sealed_.size())];
  const auto ordinal = static_cast<uint32_t>(setting_.Draw(pages_));
  return {.ordinal = ordinal,
          .source = {.region = source_.memory.pool().boot_id(), .offset = kv::kTagBytes, .generation = 1},
          .seal = {.identity = identities_[ordinal], .tokens = TokensOf(ordinal), .layout_id = LayoutId(), .checksum = 0}};
}

void Transfer::Disturb() {
  switch (setting_.Draw(4)) {
    case 0:
      return Cancel();
    case 1: {
      AttemptId earlier = attempt_;
      --earlier.counter;
      return DeliverLate({.attempt = earlier, .pages = {AnyPage()}});
    }
    case 2: {  // an announcement before or long after its time, also of a page that was not wanted
      const AnnouncedPage page = AnyPage();
      DecodeActions actions;
      decode_.OnAnnounced(attempt_, {&page, 1}, setting_.now, actions);
      return Perform(actions);
    }
    default:
      return BreakStream();
  }
}

// ---- the decode worker

void Transfer::Perform(const DecodeActions& actions) {
  DecodeActions after;  // of an adoption that failed
  // Both are allowed: what stands behind such an Adopt may be done before, or not at all.
  const bool drop_rest = Count<Adopt>(actions) > 0 && setting_.Chance(2);
  for (const DecodeAction& action : actions) {
    if (setting_.failed) return;
    setting_.Expect(!released_, "nothing is done after the release");
    PerformOne(action, after);
    if (drop_rest && !after.empty()) break;
  }
  if (!after.empty()) return Perform(after);
  CheckAlways();
}

void Transfer::PerformOne(const DecodeAction& action, DecodeActions& after) {
  if (const auto* read = std::get_if<IssueRead>(&action)) OnIssueRead(*read);
  if (const auto* adopt = std::get_if<Adopt>(&action); adopt != nullptr && !OnAdopt(*adopt)) {
    decode_.OnAdoptFailed(absl::DataLossError("tag"), after);
  }
  if (std::holds_alternative<CloseStream>(action) && stream_open_) {
    stream_open_ = false;
    decode_told_ = true;
  }
  if (std::holds_alternative<ClosePeer>(action)) {
    setting_.Mark("closed a silent peer");
    setting_.Expect(++peer_closed_ == 1, "a peer is closed once");
    *reader_closed_ = true;  // everybody who reads through it hears of it; later transfers connect again
    if (source_.reader_closed == reader_closed_) source_.reader_closed = std::make_shared<bool>(false);
  }
  if (std::holds_alternative<Complete>(action) && decode_.complete()) OnComplete();
  if (const auto* fail = std::get_if<Fail>(&action)) {
    setting_.Expect(++terminals_ == 1, "one terminal");
    setting_.Expect(!fail->status.ok(), "a failure has a reason");
    retry_elsewhere_ = fail->retry_elsewhere;
  }
  if (std::holds_alternative<ReleasePages>(action)) OnRelease();
}

void Transfer::OnIssueRead(const IssueRead& read) {
  const uint32_t ordinal = read.page.ordinal;
  setting_.Expect(read_once_.insert(ordinal).second, "I4: a page is read at most once");
  const bool wanted = ordinal >= request_.first_page && ordinal < pages_;
  setting_.Expect(wanted && !gone_, "I4: only pages of the prompt are read, and only while it holds them");
  if (setting_.failed) return;
  setting_.Expect(read.page.seal.identity == identities_[ordinal] && read.expected_identity == identities_[ordinal],
                  "I4: an announcement is judged before the read");
  sink_.pool().HoldForTransfer(Own(ordinal));
  reads_.emplace(ordinal, Read{.asked = read,
                               .at = Own(ordinal).page(),
                               .tenure = Own(ordinal).generation(),
                               .closed = reader_closed_,
                               .copied = 0,
                               .arrival = {}});
}

bool Transfer::OnAdopt(const Adopt& adopt) {
  setting_.Expect(read_once_.contains(adopt.ordinal) && !gone_, "I4: only what was read");
  setting_.Expect(adopted_.insert(adopt.ordinal).second, "I4: a page is adopted once");
  if (setting_.failed) return true;
  kv::PageHandle& page = Own(adopt.ordinal);
  if (setting_.Fault()) {  // something has overwritten a tag
    const size_t base = sink_.pool().PayloadOffset(page.page()) - kv::kTagBytes;
    const size_t tail = setting_.Chance(2) ? SmallLayout().page_bytes() - kv::kTagBytes : 0;
    sink_.bytes()[base + tail + setting_.Draw(kv::kTagBytes)] ^= std::byte{1};
  }
  const absl::Status status = sink_.pool().Adopt(page, adopt.page);
  if (status.ok()) return true;
  // As an engine does it: the page is never used again, the others of its sequence are let go at once.
  setting_.Mark(decode_.complete() ? "the last adoption failed" : "an adoption failed");
  sink_.pool().Quarantine(std::move(page));
  sink_.Release(own_);
  gone_ = true;
  return false;
}

void Transfer::OnComplete() {
  setting_.Mark("completed");
  setting_.Expect(++terminals_ == 1, "one terminal");
  setting_.Expect(adopted_.size() == pages_ - request_.first_page, "I5: full coverage");
  setting_.Expect(reads_.empty(), "I5: nothing is out when everything is covered");
  setting_.Expect(!gone_, "I12: a sequence that has lost a page never runs");
}

void Transfer::OnRelease() {
  released_ = true;
  setting_.Expect(terminals_ == 1, "a release comes after the failure");
  setting_.Expect(!decode_.complete(), "a release never comes together with Complete");
  setting_.Expect(reads_.empty(), "I7: no release while a read is out");
  sink_.Release(own_);
}

void Transfer::CheckAlways() {
  setting_.Expect(decode_.reads_out() == reads_.size(), "the machine counts its reads");
  setting_.Expect(!(decode_.complete() && decode_.released()), "completed or released, never both");
}

void Transfer::Finish() {
  if (!decode_.complete() || own_.empty()) return;
  for (uint32_t i = request_.first_page; i < pages_; ++i) {
    const kv::PageHandle& page = Own(i);
    setting_.Expect(sink_.pool().TagsMatch(page.page(), page.generation()), "I6: an adopted page keeps its tags");
    setting_.Expect(IsComputed(identities_[i], TokensOf(i), sink_.pool().Payload(page.page())),
                    "I3: an adopted page keeps what it held when it was adopted");
  }
  sink_.Release(own_);
}

void Transfer::Drain() {
  if (decode_.running()) {
    setting_.Mark("cancelled at the end");
    Cancel();
  }
  while (!reads_.empty() && !setting_.failed) AdvanceRead(absl::UnavailableError("closed"));
  BreakStream();
  while (!to_decode_.empty() && !setting_.failed) DeliverToDecode();
  DeliverToDecode();
  DeliverToPrefill();
  Finish();
}

void Transfer::CheckDrained() {
  setting_.Expect(terminals_ == 1, "exactly one terminal");
  setting_.Expect(decode_.complete() != decode_.released(), "completed or released");
  setting_.Expect(prefill_.closed() && !prefill_.pinned(), "a stream that is over pins nothing");
  setting_.Expect(own_.empty() && held_.empty(), "what was reserved was let go");
  if (decode_.stale_messages() > 0) setting_.Mark("stale messages");
  if (prefill_.wrong_messages() > 0) setting_.Mark("a wrong covered count");
}

}  // namespace cofferdam::handoff::testing
