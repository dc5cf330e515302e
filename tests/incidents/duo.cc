#include "incidents/duo.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/faults.h"

namespace cofferdam::incidents {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kChunkTokens = 64;
constexpr milliseconds kTurn{10}, kSilence{300}, kStall{2000};
constexpr int kLongest = 2000;  // turns of one request

std::unique_ptr<model::Executor> MakeExecutor(const std::shared_ptr<const model::Model>& model) {
  auto executor = model::Executor::Create(model, {.threads = 1, .cpus = {}, .max_rows = kChunkTokens});
  CD_CHECK(executor.ok(), "the model runs");
  return *std::move(executor);
}

}  // namespace

Duo::Memory::Memory(const kv::Layout& layout, uint64_t pages) : bytes(pages * layout.page_bytes() + 64) {
  const size_t past = reinterpret_cast<uintptr_t>(bytes.data()) % 64;
  aligned = {bytes.data() + (64 - past) % 64, pages * layout.page_bytes()};
}

Duo::Duo(std::shared_ptr<const model::Model> model, const DuoOptions& options)
    : model_(std::move(model)),
      layout_(model_->layout()),
      prefill_memory_(layout_, options.pages),
      decode_memory_(layout_, options.pages),
      prefill_pool_(layout_, prefill_memory_.aligned, 7, kv::ReuseOrder::kLifo),
      decode_pool_(layout_, decode_memory_.aligned, 8, kv::ReuseOrder::kLifo),
      executor_(MakeExecutor(model_)),
      prefill_engine_({.role = "prefill worker",
                       .context_tokens = options.prefill_context,
                       .chunk_tokens = options.prefill_chunk_tokens,
                       .prefix_cache = options.prefix_cache},
                      *executor_, prefill_pool_),
      decode_engine_({.role = "decode worker",
                      .context_tokens = options.decode_context,
                      .chunk_tokens = kChunkTokens,
                      .verify_reads = options.verify,
                      .prefix_cache = options.prefix_cache},
                     *executor_, decode_pool_) {}

Duo::~Duo() {
  // Reads end before what they read into does.
  for (Request& request : requests_) {
    while (!request.reads.empty()) FailRead(request);
  }
}

Duo::Request& Duo::Ask(std::string domain, Tokens prompt, uint32_t output, const std::string& salt) {
  Request& request = requests_.emplace_back();
  request.domain = std::move(domain);
  request.spec = {.domain_key = kv::DomainKey({}, request.domain, salt),
                  .domain = kv::DomainName(request.domain, salt),
                  .tokens = std::move(prompt),
                  .max_output = output,
                  .sampling = model::SamplingParams{.temperature = 0}};
  AskAgain(request);
  return request;
}

void Duo::AskAgain(Request& request) {
  request.done = false;
  request.status = absl::OkStatus();
  const uint64_t need = request.spec.tokens.size() + request.spec.max_output;
  if (need > prefill_engine_.context_tokens() && !FaultIsOn(Fault::kPeerNotJudged)) {
    return End(request, absl::InvalidArgumentError("no prefill worker holds the prompt"));
  }
  auto started = decode_engine_.Start(request.spec);
  if (auto* rejected = std::get_if<kv::Rejected>(&started)) return End(request, rejected->status);
  CD_CHECK(std::holds_alternative<engine::Engine::Started>(started), "the test's pools hold what it asks");
  request.sequence = std::get<engine::Engine::Started>(started).sequence;
  Open(request);
}

void Duo::Open(Request& request) {
  const std::span<const TokenId> covered(request.spec.tokens.data(), request.spec.tokens.size() - 1);
  request.cached_pages = decode_engine_.CachedPages(*request.sequence);
  if (uint64_t{request.cached_pages} * layout_.page_tokens() == covered.size()) {
    request.decode.reset();
    return decode_engine_.Run(*request.sequence);
  }
  request.attempt = {.boot_id = 1, .counter = ++attempts_};
  request.decode = std::make_unique<handoff::DecodeHandoff>(
      handoff::DecodeHandoff::Options{.attempt = request.attempt,
                                      .layout_id = layout_.id(),
                                      .identities = kv::PageIdentities(request.spec.domain_key, layout_, covered),
                                      .covered_tokens = covered.size(),
                                      .first_page = request.cached_pages,
                                      .page_tokens = layout_.page_tokens(),
                                      .page_bytes = layout_.payload_bytes(),
                                      .silence_limit = kSilence,
                                      .stall_limit = kStall},
      window_, now_);
  OpenContractor(request, {covered.begin(), covered.end()}, request.cached_pages);
}

void Duo::OpenContractor(Request& request, Tokens covered, uint32_t first_page) {
  request.prefill = std::make_unique<handoff::PrefillHandoff>(
      handoff::PrefillHandoff::Options{.pages = static_cast<uint32_t>(layout_.PagesFor(covered.size())),
                                       .first_page = first_page,
                                       .silence_limit = std::chrono::hours(1),
                                       .progress_limit = std::chrono::hours(1)},
      now_);
  handoff::PrefillActions actions;
  auto started =
      prefill_engine_.Start({.domain_key = request.spec.domain_key, .domain = request.spec.domain, .tokens = std::move(covered)});
  if (auto* rejected = std::get_if<kv::Rejected>(&started)) {
    request.prefill->OnRefused(rejected->status, actions);
  } else {
    CD_CHECK(std::holds_alternative<engine::Engine::Started>(started), "the test's pools hold what it asks");
    request.contractor = std::get<engine::Engine::Started>(started).sequence;
    prefill_engine_.Run(*request.contractor);
    request.prefill->OnReserved(actions);
    std::vector<handoff::AnnouncedPage> found;
    for (const engine::SealedEvent& page : prefill_engine_.SealedPages(*request.contractor)) found.push_back(Announced(page));
    if (!found.empty()) request.prefill->OnSealed(std::move(found), actions);
  }
  Act(request, actions);
}

handoff::AnnouncedPage Duo::Announced(const engine::SealedEvent& page) const {
  return {.ordinal = page.ordinal,
          .source = {.region = 7, .offset = prefill_pool_.PayloadOffset(page.page), .generation = page.generation.value()},
          .seal = page.seal};
}

void Duo::Act(Request& request, const handoff::PrefillActions& actions) {
  for (const handoff::PrefillAction& action : actions) {
    if (const auto* sealed = std::get_if<handoff::SendSealed>(&action)) {
      request.messages.push_back({.attempt = request.attempt, .pages = sealed->pages});
    } else if (const auto* end = std::get_if<handoff::EndStream>(&action)) {
      BreakStream(request, end->status);
    } else if (std::holds_alternative<handoff::Unpin>(action)) {
      prefill_engine_.Release(*request.contractor);
      request.contractor.reset();
    }
  }
}

void Duo::PrefillTurn() {
  std::vector<engine::Event> events;
  prefill_engine_.Step(events);
  std::map<SequenceId, std::vector<handoff::AnnouncedPage>> sealed;
  for (const engine::Event& event : events) {
    if (const auto* page = std::get_if<engine::SealedEvent>(&event)) {
      sealed[page->sequence].push_back(Announced(*page));
    } else if (const auto* failed = std::get_if<engine::FailedEvent>(&event)) {
      for (Request& request : requests_) {
        if (request.contractor != failed->sequence) continue;
        request.contractor.reset();
        handoff::PrefillActions actions;
        request.prefill->OnComputeFailed(failed->status, actions);
        Act(request, actions);
      }
    }
  }
  for (Request& request : requests_) {
    if (!request.contractor.has_value() || !sealed.contains(*request.contractor)) continue;
    handoff::PrefillActions actions;
    request.prefill->OnSealed(std::move(sealed[*request.contractor]), actions);
    Act(request, actions);
  }
  prefill_engine_.Reclaim();
}

void Duo::DecodeTurn() {
  std::vector<engine::Event> events;
  decode_engine_.Step(events);
  if (scrub_) decode_engine_.Scrub(size_t{1} << 30, events);
  for (const engine::Event& event : events) {
    const SequenceId sequence = engine::SequenceOf(event);
    const auto request = std::ranges::find_if(requests_, [&](const Request& r) { return r.sequence == sequence; });
    if (request == requests_.end()) continue;
    if (const auto* token = std::get_if<engine::TokenEvent>(&event)) {
      request->answer.push_back({token->token, std::bit_cast<uint32_t>(token->logprob)});
    } else if (const auto* failed = std::get_if<engine::FailedEvent>(&event)) {
      request->sequence.reset();
      End(*request, failed->status);
    } else if (std::holds_alternative<engine::FinishedEvent>(event)) {
      request->sequence.reset();
      End(*request, absl::OkStatus());
    }
  }
  decode_engine_.Reclaim();
}

void Duo::Turn() {
  now_ += kTurn;
  PrefillTurn();
  for (Request& request : requests_) {
    if (!request.hold_messages) DeliverMessages(request);
    if (!request.hold_reads && !request.hold_landings) PerformReads(request, request.reads.size());
  }
  DecodeTurn();
  for (Request& request : requests_) {
    if (request.decode == nullptr) continue;
    handoff::DecodeActions actions;
    // The stream's own heartbeat: the peer lives, and steps when it has work.
    if (request.contractor.has_value()) {
      request.decode->OnHeartbeat(request.attempt, prefill_engine_.counters().steps, now_, actions);
    }
    request.decode->OnTick(now_, actions);
    Act(request, actions);
  }
}

void Duo::Finish(Request& request) {
  for (int turn = 0; !request.done && turn < kLongest; ++turn) Turn();
  CD_CHECK(request.done, "every request ends");
}

Answer Duo::Alone(const std::string& domain, const Tokens& prompt, uint32_t output) {
  Request& request = Ask(domain, prompt, output);
  Finish(request);
  CD_CHECK(request.status.ok(), "undisturbed it is answered");
  return request.answer;
}

void Duo::Deliver(Request& request, const Request::Message& message) {
  handoff::DecodeActions actions;
  request.decode->OnAnnounced(message.attempt, message.pages, now_, actions);
  Act(request, actions);
}

void Duo::DeliverMessages(Request& request) {
  while (!request.messages.empty()) {
    const Request::Message message = std::move(request.messages.front());
    request.messages.pop_front();
    Deliver(request, message);
  }
}

void Duo::DeliverAll(Request& request) {
  DeliverMessages(request);
  PerformReads(request, request.reads.size());
}

void Duo::PerformReads(Request& request, size_t count) {
  for (; count > 0 && !request.reads.empty(); --count) Perform(request);
}

std::span<const std::byte> Duo::Source(const handoff::IssueRead& read) const {
  return prefill_memory_.aligned.subspan(read.page.source.offset, layout_.payload_bytes());
}

void Duo::Perform(Request& request) {
  const Request::Read read = request.reads.front();
  request.reads.pop_front();
  const std::span<const std::byte> bytes = read.in_flight.empty() ? Source(read.what) : std::span(read.in_flight);
  std::ranges::copy(bytes, read.into.payload.begin());
  const kv::Arrival arrival =
      kv::VerifyArrived(layout_, read.into, read.what.page.seal, read.what.expected_identity, read.what.expected_tokens);
  bad_seals_ += std::holds_alternative<kv::SealFault>(arrival) ? 1 : 0;
  decode_engine_.EndTransfer(read.into.page, read.into.generation);
  handoff::DecodeActions actions;
  request.decode->OnReadDone(read.what.page.ordinal, arrival, actions);
  Act(request, actions);
}

void Duo::FailRead(Request& request) {
  const Request::Read read = request.reads.front();
  request.reads.pop_front();
  decode_engine_.EndTransfer(read.into.page, read.into.generation);
  handoff::DecodeActions actions;
  request.decode->OnReadFailed(read.what.page.ordinal, absl::UnavailableError("the connection is gone"), actions);
  Act(request, actions);
}

void Duo::Act(Request& request, const handoff::DecodeActions& actions) {
  for (const handoff::DecodeAction& action : actions) {
    if (const auto* read = std::get_if<handoff::IssueRead>(&action)) {
      decode_engine_.HoldForTransfer(*request.sequence, read->page.ordinal);
      request.reads.push_back(
          {.what = *read, .into = decode_engine_.PageAt(*request.sequence, read->page.ordinal), .in_flight = {}});
      if (request.hold_landings) {
        const auto source = Source(*read);
        request.reads.back().in_flight.assign(source.begin(), source.end());
      }
    } else if (const auto* adopt = std::get_if<handoff::Adopt>(&action)) {
      absl::Status status = decode_engine_.Adopt(*request.sequence, adopt->ordinal, adopt->page);
      if (!status.ok()) {
        request.sequence.reset();
        handoff::DecodeActions then;
        request.decode->OnAdoptFailed(status, then);
        return Act(request, then);
      }
    } else if (std::holds_alternative<handoff::CloseStream>(action)) {
      CloseStream(request);
    } else if (std::holds_alternative<handoff::Complete>(action)) {
      Complete(request);
    } else if (const auto* fail = std::get_if<handoff::Fail>(&action)) {
      End(request, fail->status);
    } else if (std::holds_alternative<handoff::ReleasePages>(action)) {
      ReleaseDecode(request);
    }
  }
}

void Duo::Complete(Request& request) {
  if (absl::Status status = decode_engine_.CheckAdopted(*request.sequence); !status.ok()) {
    End(request, status);
    return ReleaseDecode(request);
  }
  decode_engine_.Run(*request.sequence);
}

void Duo::ReleaseDecode(Request& request) {
  if (request.sequence.has_value()) decode_engine_.Release(*request.sequence);
  request.sequence.reset();
}

void Duo::End(Request& request, const absl::Status& status) {
  if (std::exchange(request.done, true)) return;
  request.status = status;
}

void Duo::Cancel(Request& request) {
  handoff::DecodeActions actions;
  if (request.decode != nullptr && request.decode->running()) {
    request.decode->OnCancel(actions);
    return Act(request, actions);
  }
  ReleaseDecode(request);
  End(request, absl::CancelledError("cancelled"));
}

void Duo::CloseStream(Request& request) {
  handoff::PrefillActions actions;
  request.prefill->OnStreamClosed(actions);
  Act(request, actions);
}

void Duo::BreakStream(Request& request, const absl::Status& status) {
  CloseStream(request);
  handoff::DecodeActions actions;
  request.decode->OnStreamEnded(status, actions);
  Act(request, actions);
}

void Duo::Wait(milliseconds time) {
  for (const handoff::Time end = now_ + time; now_ < end;) {
    now_ += kTurn;
    for (Request& request : requests_) {
      if (request.decode == nullptr) continue;
      handoff::DecodeActions actions;
      request.decode->OnTick(now_, actions);
      Act(request, actions);
    }
    prefill_engine_.Reclaim();
    decode_engine_.Reclaim();
  }
}

uint64_t Duo::Failed(kv::CheckKind kind) const {
  const uint64_t arrivals = kind == kv::CheckKind::kSeal ? bad_seals_ : 0;
  return arrivals + prefill_engine_.counters().checks[kind].failed + decode_engine_.counters().checks[kind].failed;
}

uint64_t Duo::stale_messages() const {
  uint64_t sum = 0;
  for (const Request& request : requests_) sum += request.decode == nullptr ? 0 : request.decode->stale_messages();
  return sum;
}

bool Duo::AllFree() {
  prefill_engine_.Reclaim();
  decode_engine_.Reclaim();
  const auto unused = [](const kv::Pool& pool) {
    return pool.counts().free() + pool.counts().by_state[static_cast<size_t>(kv::PageState::kCached)] == pool.total_pages();
  };
  return unused(prefill_pool_) && unused(decode_pool_);
}

}  // namespace cofferdam::incidents
