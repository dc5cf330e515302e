#include "handoff/random_world.h"

#include <algorithm>
#include <utility>

namespace cofferdam::handoff::testing {
namespace {

constexpr uint64_t kBootOfDecode = 7;

}  // namespace

World::World(Choices& choices, Marks& marks, std::function<void(const char*)> broken)
    : setting_{.choices = choices, .marks = marks, .broken = std::move(broken)} {
  const size_t page_bytes = SmallLayout().payload_bytes();
  cap_bytes_ = (1 + setting_.Draw(4)) * page_bytes - setting_.Draw(2);  // also one byte less than a page
  cap_ = std::make_unique<TransferWindow>(cap_bytes_);
  sink_ = std::make_unique<Memory>(setting_, kBootOfDecode, 6 + setting_.Draw(12));
  for (uint64_t i = 0, count = 1 + setting_.Draw(2); i < count; ++i) {
    const size_t window_bytes = (1 + setting_.Draw(4)) * page_bytes;
    sources_.push_back(std::make_unique<Source>(setting_, 100 + 2 * i, 5 + setting_.Draw(10), window_bytes, cap_.get()));
  }
  // A part of the schedules runs almost undisturbed, so that completion is reached late, too.
  setting_.faults = setting_.Chance(3) ? 0 : 1 + setting_.Draw(setting_.Chance(2) ? 30 : 250);
  requests_left_ = 1 + setting_.Draw(5);
  Source& crowded = *sources_.front();  // somebody else holds its window
  if (!setting_.Chance(4)) return;
  while (crowded.window.TryTake(crowded.other, page_bytes)) {
  }
  crowded.window.StopWaiting(crowded.other);
}

World::~World() {
  // After a finding, too, nothing is dropped that others would stumble over.
  for (const auto& source : sources_) source->window.Give(source->other, source->other.held_bytes());
}

void World::Run() {
  StartOne();
  for (int i = 0; i < kMostEvents && !setting_.choices.over() && !setting_.failed && !Over(); ++i) {
    AnyEvent();
    CheckWindows();
  }
  if (!setting_.failed) Drain();
}

bool World::Over() const {
  return requests_left_ == 0 && std::ranges::all_of(transfers_, [](const auto& transfer) { return transfer->over(); });
}

void World::OnAnyTransfer(void (Transfer::*event)()) {
  if (!transfers_.empty()) (transfers_[setting_.Draw(transfers_.size())].get()->*event)();
}

void World::AnyEvent() {
  Source& source = *sources_[sources_.size() == 1 ? 0 : setting_.Draw(sources_.size())];
  switch (setting_.Draw(16)) {
    case 0:
    case 1:
    case 2:
      return StepSource(source);
    case 3:
    case 4:
    case 5:
      return OnAnyTransfer(&Transfer::DeliverToDecode);
    case 6:
      return OnAnyTransfer(&Transfer::DeliverToPrefill);
    case 7:
    case 8:
    case 9:
      if (!transfers_.empty()) AdvanceRead(*transfers_[setting_.Draw(transfers_.size())]);
      return;
    case 10:
      for (const auto& transfer : transfers_) transfer->Heartbeats();
      return;
    case 11:
      return Tick();
    case 12:
      source.memory.Reclaim();
      sink_->Reclaim();
      return GiveOther(source);
    case 13:
      return StartOne();
    case 14:
      return OnAnyTransfer(&Transfer::Finish);
    default:
      if (!setting_.Fault()) return;
      return setting_.Chance(4) ? LateMessage() : OnAnyTransfer(&Transfer::Disturb);
  }
}

// ---- requests

Request World::NewRequest() {
  Request request;
  request.domain_key[0] = static_cast<uint8_t>(requests_ % 2);       // two tenants
  const auto first = static_cast<TokenId>(setting_.Draw(2) * 1000);  // also the same prompt of both
  for (uint64_t n = 1 + setting_.Draw(uint64_t{8} * kPageTokens), i = 0; i < n; ++i)
    request.tokens.push_back(first + static_cast<TokenId>(i));
  request.first_page = static_cast<uint32_t>(setting_.Draw((request.tokens.size() + kPageTokens - 1) / kPageTokens));
  return request;
}

void World::StartOne() {
  if (transfers_.size() >= kMostTransfers) {
    requests_left_ = 0;
    return;
  }
  const auto failed = std::ranges::find_if(transfers_, [](const auto& transfer) { return transfer->to_be_retried(); });
  const bool retry = failed != transfers_.end() && setting_.Chance(2);
  if (!retry && requests_left_ == 0) return;
  const Request request = retry ? (*failed)->request() : NewRequest();
  std::vector<kv::PageHandle> own;
  const Memory::Answer answer = sink_->Reserve(request.tokens.size() - uint64_t{request.first_page} * kPageTokens, own);
  if (answer == Memory::Answer::kWait) return;
  if (!retry) --requests_left_, ++requests_;
  if (answer == Memory::Answer::kNever) return;
  if (retry) setting_.Mark("tried again");
  Source& source = *sources_[setting_.Draw(sources_.size())];
  const AttemptId attempt{.boot_id = kBootOfDecode, .counter = transfers_.size() + 1};
  transfers_.push_back(std::make_unique<Transfer>(setting_, *sink_, source, attempt, request, std::move(own)));
}

// ---- the prefill workers

void World::StepSource(Source& source) {
  if (source.memory.stepping()) return EndStep(source);
  for (const auto& transfer : transfers_) {
    if (&transfer->source() == &source) transfer->AskForPages();
  }
  for (const auto& transfer : transfers_) {
    if (&transfer->source() == &source) transfer->BeginStep(source.step);
  }
  if (!source.step.empty()) source.memory.BeginStep();
}

void World::EndStep(Source& source) {
  ++source.steps;
  std::vector<std::pair<Transfer*, uint32_t>> ended;
  for (const Source::Write& write : source.step) {
    const kv::PageState state = source.memory.pool().StateOf(write.page);
    setting_.Expect(state == kv::PageState::kFilling || state == kv::PageState::kRetired,
                    "I7: a page stays what it was until the step that writes it has ended");
    write.transfer->Write(write.ordinal, source.memory.pool().Payload(write.page));
    if (ended.empty() || ended.back().first != write.transfer) ended.emplace_back(write.transfer, 0);
    ++ended.back().second;
  }
  source.step.clear();
  source.memory.EndStep();
  for (const auto& [transfer, pages] : ended) transfer->EndStep(pages);
}

// ---- the fabric

void World::AdvanceRead(Transfer& transfer) {
  if (transfer.AdvanceRead(std::nullopt)) OfferWindow();
}

void World::OfferWindow() {
  for (const auto& transfer : transfers_) transfer->OfferWindow();
}

void World::GiveOther(Source& source) {
  if (source.other.held_bytes() == 0) return;
  source.window.Give(source.other, SmallLayout().payload_bytes());
  OfferWindow();
}

void World::CheckWindows() {
  const size_t page_bytes = SmallLayout().payload_bytes();
  size_t all = 0;
  for (const auto& source : sources_) {
    size_t bytes = source->other.held_bytes();
    for (const auto& transfer : transfers_) bytes += &transfer->source() == source.get() ? transfer->reads_out() * page_bytes : 0;
    setting_.Expect(source->window.in_flight_bytes() == bytes, "a window counts what is in flight");
    setting_.Expect(source->window.most_bytes() <= std::max(page_bytes, source->window_bytes), "a window keeps its limit");
    all += bytes;
  }
  setting_.Expect(cap_->in_flight_bytes() == all, "the cap counts what is in flight");
  setting_.Expect(cap_->most_bytes() <= std::max(page_bytes, cap_bytes_), "the cap keeps its limit");
}

// ---- clocks, and what comes late

void World::Tick() {
  setting_.now += setting_.Chance(50) ? milliseconds(500) : milliseconds(10 + setting_.Draw(90));
  for (const auto& transfer : transfers_) transfer->Tick();
}

void World::LateMessage() {
  if (transfers_.empty()) return;
  const std::optional<Announcement> message = transfers_[setting_.Draw(transfers_.size())]->last_message();
  if (message.has_value()) transfers_[setting_.Draw(transfers_.size())]->DeliverLate(*message);
}

void World::Drain() {
  for (const auto& transfer : transfers_) transfer->Drain();
  for (const auto& source : sources_) {
    if (source->memory.stepping()) EndStep(*source);
    source->window.Give(source->other, source->other.held_bytes());
    source->memory.Reclaim();
    setting_.Expect(source->memory.NobodyHoldsAPage(), "I9: every page of a prefill worker is free again");
    setting_.Expect(source->window.in_flight_bytes() == 0 && source->window.waiting() == 0, "nobody waits for an empty window");
  }
  sink_->Reclaim();
  setting_.Expect(sink_->NobodyHoldsAPage(), "I9: every page of the decode worker is free again");
  setting_.Expect(cap_->in_flight_bytes() == 0 && cap_->waiting() == 0, "nobody waits for an empty cap");
  for (const auto& transfer : transfers_) transfer->CheckDrained();
}

}  // namespace cofferdam::handoff::testing
