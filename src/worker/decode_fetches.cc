// The decode server's fetches: where a prompt is computed, who is asked for pages, and what happens when that fails.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/faults.h"
#include "base/log.h"
#include "worker/decode_worker.h"

namespace cofferdam::worker {
namespace {

constexpr int kMaxHandoffs = 3;  // of one request: the first and two retries
// A prompt's token that is computed here delays the tokens of others; one at a prefill worker does not.
constexpr uint64_t kLocalTokenCost = 4;

}  // namespace

uint64_t DecodeWorker::LocalTokens() const {
  const uint32_t local = core_->options().local_prefill_tokens;
  return std::max<uint64_t>(1, local == 0 ? core_->layout().page_tokens() : local);
}

bool DecodeWorker::NeedsHandoff(const engine::SequenceSpec& spec) const {
  // The last token is decode's own in any case.
  return !peers_.empty() && spec.tokens.size() - 1 >= LocalTokens();
}

bool DecodeWorker::PrefillPullsFromHere() const {
  return std::ranges::all_of(peers_, [&](const std::shared_ptr<PrefillPeer>& peer) {
    const PrefillPeer::State state = peer->state();
    return !state.ready || std::ranges::count(state.info.pull_from(), core_->options().address) > 0;
  });
}

uint64_t DecodeWorker::MissingTokens(const Request& request) const {
  return request.spec.tokens.size() - 1 - request.cached_tokens - core_->engine().TokensToCopy(*request.sequence);
}

DecodeWorker::Place DecodeWorker::WhereToCompute(const Request& request) const {
  if (peers_.empty()) return Place::kHereAlone;
  const uint64_t covered = request.spec.tokens.size() - 1;
  const uint64_t here = MissingTokens(request);
  if (here < LocalTokens()) return Place::kHereShort;
  // What a prefill worker would have to compute is guessed: it may still hold what it once sent, and gets what lies here if it can.
  const uint64_t there = PrefillPullsFromHere() ? here
                                                : covered - uint64_t{core_->engine().CachedPagesOfPeers(*request.sequence)} *
                                                                core_->layout().page_tokens();
  return here * kLocalTokenCost <= there ? Place::kHereCheaper : Place::kPrefill;
}

void DecodeWorker::PlacePrompt(Request& request) {
  const Place place = WhereToCompute(request);
  ++counters_.places[static_cast<size_t>(place)];
  if (place == Place::kPrefill) return OpenHandoff(request);
  ComputeHere(request);
}

bool DecodeWorker::LookElsewhere(Request& request) {
  const uint32_t page_tokens = core_->layout().page_tokens();
  const size_t whole_pages = (request.spec.tokens.size() - 1) / page_tokens;
  if (!request.may_pull || request.recompute || MissingTokens(request) < LocalTokens() ||
      request.cached_tokens >= whole_pages * page_tokens)
    return false;
  const std::span<const TokenId> covered(request.spec.tokens.data(), whole_pages * page_tokens);
  return finder_.Ask(pull_from_, kv::PageIdentities(request.spec.domain_key, core_->layout(), covered),
                     [this, id = request.id, sequence = *request.sequence](const PageFinder::Best& best) {
                       Request* asking = Find(id);
                       if (asking != nullptr && asking->sequence == sequence) OnFound(*asking, best);
                     });
}

void DecodeWorker::OnFound(Request& request, const PageFinder::Best& best) {
  const uint32_t page_tokens = core_->layout().page_tokens();
  const uint32_t held = request.cached_tokens / page_tokens;
  if (best.pages <= held || !best.peer->state().ready) return PlacePrompt(request);
  StartFetch(request, {.peer = best.peer,
                       .tokens = {request.spec.tokens.begin(),
                                  request.spec.tokens.begin() + static_cast<ptrdiff_t>(best.pages * page_tokens)},
                       .first_page = held,
                       .pull = true});
}

std::shared_ptr<PrefillPeer> DecodeWorker::ChoosePeer(const Request& request) {
  const uint64_t need = request.spec.tokens.size() + request.spec.max_output;
  std::shared_ptr<PrefillPeer> same;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const size_t index = (next_peer_ + i) % peers_.size();
    const PrefillPeer::State state = peers_[index]->state();
    if (!state.ready || (state.info.context_tokens() < need && !FaultIsOn(Fault::kPeerNotJudged))) continue;
    if (peers_[index] == request.peer) {
      same = peers_[index];
      continue;
    }
    next_peer_ = index + 1;
    return peers_[index];
  }
  return same;
}

void DecodeWorker::OpenHandoff(Request& request) {
  request.peer = ChoosePeer(request);
  if (request.accepted && (request.peer == nullptr || request.handoffs >= kMaxHandoffs)) return ComputeHere(request);
  if (request.peer == nullptr) {
    return Finish(request, WithFacts(absl::UnavailableError("no prefill worker is ready; try again later"),
                                     {.code = std::string(error_code::kNoWorker), .retry_after_s = 1}));
  }
  ++request.handoffs;
  StartFetch(request, {.peer = request.peer,
                       .tokens = {request.spec.tokens.begin(), request.spec.tokens.end() - 1},
                       .first_page = request.cached_tokens / core_->layout().page_tokens(),
                       .priority = request.priority,
                       .recompute = request.recompute});
}

void DecodeWorker::StartFetch(Request& request, FetchSpec spec) {
  spec.sequence = *request.sequence;
  spec.domain_key = request.spec.domain_key;
  spec.request_id = request.request_id;
  spec.domain = request.domain;
  spec.cache_salt = request.cache_salt;
  const bool pull = spec.pull;
  const RequestId id = request.id;
  request.retry = false;
  request.fetch = fetcher_.Start(
      std::move(spec),
      {.on_covered = [this, id, pull](uint32_t pages) { OnFetched(requests_.at(id), pull, pages); },
       .on_failed = [this, id, pull](const FetchFailure& failure) { OnFetchFailed(requests_.at(id), pull, failure); },
       .on_quiet = [this, id] { OnReleased(requests_.at(id)); }});
}

void DecodeWorker::OnFetched(Request& request, bool pull, uint32_t pages) {
  request.fetch.reset();
  request.pages_verified += pages;
  if (pull) {
    request.cached_tokens += pages * core_->layout().page_tokens();
    core_->engine().ShareAdopted(*request.sequence);  // a prefill worker may pull them from here
    return PlacePrompt(request);
  }
  core_->engine().Run(*request.sequence);
  Accept(request);
}

void DecodeWorker::OnFetchFailed(Request& request, bool pull, const FetchFailure& failure) {
  request.pages_verified += failure.adopted_pages;
  if (failure.sequence_gone) {
    core_->ledger().OnEnded(*request.sequence, tenure::Outcome::kIntegrity, 0, request.pages_verified);
    by_sequence_.erase(*request.sequence);
    request.sequence.reset();
  }
  if (pull) {
    request.may_pull = false;
    request.retry = !absl::IsCancelled(failure.status) && !failure.sequence_gone && !request.abandoned;
  } else {
    request.recompute = request.recompute || absl::IsDataLoss(failure.status);
    request.retry = failure.retry_elsewhere && MayTryAgain(request);
  }
  log::info("request {}: {} failed: {}{}", request.request_id, pull ? "a pull" : "handoff", std::string(failure.status.message()),
            !request.retry ? ""
            : pull         ? "; it goes on without"
                           : "; it is tried again");
  if (!request.retry) Finish(request, failure.status);
}

void DecodeWorker::OnReleased(Request& request) {
  request.fetch.reset();
  if (request.sequence.has_value()) {
    by_sequence_.erase(*request.sequence);
    core_->engine().Release(*request.sequence);
    core_->ledger().OnEnded(*request.sequence, tenure::Outcome::kFailed, 0, request.pages_verified);
    request.sequence.reset();
  }
  if (!request.retry) {
    requests_.erase(request.id);
    return;
  }
  if (request.handoffs > 0) ++counters_.handoff_retries;
  request.pages_verified = 0;
  // Ahead of younger requests, but holding nothing meanwhile.
  Wait(request);
}

bool DecodeWorker::MayTryAgain(const Request& request) const {
  if (request.abandoned) return false;
  return request.accepted || (request.handoffs < kMaxHandoffs && WhyNotReady().empty());
}

}  // namespace cofferdam::worker
