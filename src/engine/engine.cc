#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error.h"
#include "base/faults.h"
#include "engine/sequence.h"

namespace cofferdam::engine {
namespace {
constexpr uint64_t kRoomAhead = 16;  // one page in so many is kept free of the cache
}  // namespace

Engine::Engine(EngineOptions options, model::Computation& executor, kv::Pool& pool)
    : options_(std::move(options)),
      executor_(executor),
      pool_(pool),
      cache_(pool),
      admission_(options_.role, pool.layout(), options_.context_tokens),
      sample_random_(options_.sample_seed) {}

Engine::~Engine() {
  while (!sequences_.empty()) Release(sequences_.begin()->first);
  cache_.Clear(NowUnderWay());
}

absl::Status Engine::CheckSpec(const SequenceSpec& spec) const {
  if (FaultIsOn(Fault::kRejectGoesOn) && !spec.sampling.has_value()) return absl::OkStatus();
  return Judge(spec);
}

absl::Status Engine::Judge(const SequenceSpec& spec) const {
  if (spec.tokens.empty()) return absl::InvalidArgumentError("the prompt has no tokens; it needs at least one");
  if (spec.resumed_tokens >= spec.tokens.size()) {
    return absl::InvalidArgumentError("resumed_tokens must leave at least one token of the original prompt");
  }
  const auto vocabulary = static_cast<TokenId>(executor_.vocabulary());
  for (TokenId token : spec.tokens) {
    if (token < 0 || token >= vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("token ", token, " is not in the vocabulary (0 to ", vocabulary - 1, ")"));
    }
  }
  if (spec.sampling.has_value()) {
    if (spec.max_output == 0) return absl::InvalidArgumentError("max_tokens must be at least 1");
    if (spec.top_logprobs > model::kMaxTopLogprobs) {
      return absl::InvalidArgumentError(
          absl::StrCat("top_logprobs is ", spec.top_logprobs, "; at most ", model::kMaxTopLogprobs, " are given"));
    }
    if (auto sampler = model::Sampler::Create(*spec.sampling, executor_.vocabulary()); !sampler.ok()) {
      return sampler.status();
    }
  }
  return admission_.CheckContext({.prompt_tokens = spec.tokens.size(), .output_tokens = spec.max_output}, pool_.counts());
}

std::variant<Engine::Started, kv::MustWait, kv::Rejected> Engine::Start(SequenceSpec spec) {
  if (absl::Status status = CheckSpec(spec); !status.ok()) return kv::Rejected{std::move(status)};
  if (FaultIsOn(Fault::kRejectGoesOn) && !Judge(spec).ok()) spec.tokens = {1};
  if (sequences_.size() >= options_.max_sequences) return kv::MustWait{};
  // A sequence that generates computes its last token itself, and into a page of its own.
  const size_t shareable = (spec.tokens.size() - (spec.sampling.has_value() ? 1 : 0)) / pool_.layout().page_tokens();
  std::vector<kv::PrefixCache::Pin> cached;
  if (options_.prefix_cache) cached = TakeCached(spec, shareable);
  const kv::AdmissionNeed need = NeedOf(spec, cached.size());
  kv::AdmissionResult result = admission_.Admit(need, pool_.counts());
  if (!std::holds_alternative<kv::Admitted>(result)) {
#ifdef COFFERDAM_FAULTS
    if (FaultIsOn(Fault::kPinAfterLookup)) {
      std::vector<PageId>& looked_up = looked_up_[{spec.domain, spec.tokens}];
      for (const kv::PrefixCache::Pin& pin : cached) looked_up.push_back(pin.handle().page());
    }
#endif
    const uint64_t pages = admission_.FreePagesFor(need), coming = ComingPages();
    if (std::holds_alternative<kv::MustWait>(result) && pages > coming) cache_.Evict(pages - coming, NowUnderWay());
    for (kv::PrefixCache::Pin& pin : cached) cache_.Unpin(std::move(pin), NowUnderWay());
    if (auto* rejected = std::get_if<kv::Rejected>(&result)) return std::move(*rejected);
    return kv::MustWait{};
  }
  std::optional<std::vector<kv::PageHandle>> pages = pool_.Reserve(std::get<kv::Admitted>(std::move(result)));
  CD_CHECK(pages.has_value(), "admission and reservation are one action of one thread");
  if (options_.prefix_cache) cache_.CountLookup(shareable, cached.size());

  return Started{Make(std::move(spec), std::move(cached), *std::move(pages))};
}

SequenceId Engine::Make(SequenceSpec spec, std::vector<kv::PrefixCache::Pin> cached, std::vector<kv::PageHandle> pages) {
  const SequenceId id(next_sequence_++);
  auto sequence = std::make_unique<Sequence>(id, std::move(spec), pool_.layout());
  sequence->cached_pages = static_cast<uint32_t>(cached.size());
  for (kv::PrefixCache::Pin& pin : cached) sequence->pages.emplace_back(std::move(pin));
  for (kv::PageHandle& page : pages) sequence->pages.emplace_back(std::move(page));
  for (const PageRef& page : sequence->pages) sequence->payloads.push_back(pool_.Payload(page.page()).data());
  sequence->adopted.resize(sequence->pages.size());
  sequence->origins.resize(sequence->pages.size());
  for (uint32_t i = 0; i < sequence->cached_pages; ++i) sequence->adopted[i] = pool_.SealOf(sequence->pages[i]);
  if (sequence->generates()) {
    sequence->sampler = *model::Sampler::Create(*sequence->spec.sampling, executor_.vocabulary());
    for (TokenId token : sequence->tokens) sequence->sampler->Accept(token);
  }
  sequences_.emplace(id, std::move(sequence));
  return id;
}

std::optional<SequenceId> Engine::HoldCached(SequenceSpec spec) {
  CD_CHECK(!spec.sampling.has_value(), "what is held for readers generates nothing");
  const size_t pages = spec.tokens.size() / pool_.layout().page_tokens();
  std::vector<kv::PrefixCache::Pin> cached;
  if (options_.prefix_cache && spec.tokens.size() == pages * pool_.layout().page_tokens())
    cached = KeepGood(spec, pages, cache_.Acquire({spec.domain, spec.domain_key}, spec.tokens, pages));
  if (cached.size() < std::max<size_t>(1, pages)) {
    for (kv::PrefixCache::Pin& pin : cached) cache_.Unpin(std::move(pin), NowUnderWay());
    return std::nullopt;
  }
  const SequenceId id = Make(std::move(spec), std::move(cached), {});
  Run(id);
  return id;
}

kv::AdmissionNeed Engine::NeedOf(const SequenceSpec& spec, size_t cached_pages) const {
  uint64_t growing = 0;
  for (const auto& [id, sequence] : sequences_) growing += MayGrow(*sequence) ? 1 : 0;
  return {.prompt_tokens = spec.tokens.size(),
          .output_tokens = spec.max_output,
          .cached_pages = cached_pages,
          .first_output_tokens = options_.first_output_tokens,
          .headroom_pages = growing};
}

uint64_t Engine::ComingPages() const {
  return pool_.counts().free() + pool_.counts().by_state[static_cast<size_t>(kv::PageState::kRetired)];
}

std::vector<kv::PrefixCache::Pin> Engine::TakeCached(const SequenceSpec& spec, size_t most_pages) {
#ifdef COFFERDAM_FAULTS
  if (auto looked_up = looked_up_.extract({spec.domain, spec.tokens})) return cache_.AcquirePages(looked_up.mapped());
#endif
  std::vector<kv::PrefixCache::Pin> cached = cache_.Acquire({spec.domain, spec.domain_key}, spec.tokens, most_pages);
  const bool waits = admission_.FreePagesFor(NeedOf(spec, cached.size())) > pool_.counts().free();
  return waits ? std::move(cached) : KeepGood(spec, most_pages, std::move(cached));
}

std::vector<kv::PrefixCache::Pin> Engine::KeepGood(const SequenceSpec& spec, size_t most_pages,
                                                   std::vector<kv::PrefixCache::Pin> cached) {
  while (true) {
    const CheckTimer timer(counters_.check_time);
    const auto bad = std::ranges::find_if(cached, [&](const kv::PrefixCache::Pin& pin) {
      ++counters_.checks[kv::CheckKind::kScrub].made;
      return !pool_.PayloadMatches(pin.handle());
    });
    if (bad == cached.end()) return cached;
    // What was computed before it is good, and found by the next look.
    CondemnCached(bad->handle(), found_);
    for (kv::PrefixCache::Pin& pin : cached) cache_.Unpin(std::move(pin), NowUnderWay());
    cached = cache_.Acquire({spec.domain, spec.domain_key}, spec.tokens, most_pages);
  }
}

size_t Engine::Reclaim() {
  // Whoever waits for eviction waits for zeroing, too.
  const uint64_t coming = ComingPages();
  const uint64_t room = pool_.total_pages() / kRoomAhead;
  if (options_.prefix_cache && coming < room) cache_.Evict(room - coming, NowUnderWay());
  return pool_.Reclaim(StepEpoch(steps_ended_));
}

uint64_t Engine::ForgetCached(const SequenceSpec& spec) {
  return cache_.Forget({spec.domain, spec.domain_key}, spec.tokens, NowUnderWay());
}

Engine::Sequence& Engine::Get(SequenceId id) {
  const auto found = sequences_.find(id);
  CD_CHECK(found != sequences_.end(), "a sequence is named only while it lives");
  return *found->second;
}

Engine::PageView Engine::PageAt(SequenceId id, uint32_t ordinal) {
  Sequence& sequence = Get(id);
  CD_CHECK(ordinal < sequence.pages.size(), "a page is inside its sequence's table");
  const kv::PageHandle& handle = sequence.pages[ordinal];
  return {.page = handle.page(), .generation = handle.generation(), .payload = pool_.Payload(handle.page())};
}

std::vector<std::pair<PageId, Generation>> Engine::TenuresOf(SequenceId id) const {
  std::vector<std::pair<PageId, Generation>> tenures;
  for (const PageRef& page : const_cast<Engine*>(this)->Get(id).pages) tenures.emplace_back(page.page(), page.generation());
  return tenures;
}

uint32_t Engine::CachedPages(SequenceId id) { return Get(id).cached_pages; }

uint32_t Engine::CachedPagesOfPeers(SequenceId id) {
  const Sequence& sequence = Get(id);
  uint32_t count = 0;
  while (count < sequence.cached_pages && sequence.pages[count].pin()->origin() != 0) ++count;
  return count;
}

std::vector<SealedEvent> Engine::SealedPages(SequenceId id) {
  const Sequence& sequence = Get(id);
  std::vector<SealedEvent> sealed;
  for (uint32_t i = 0; i < sequence.sealed_pages; ++i) {
    const PageRef& page = sequence.pages[i];
    sealed.push_back(
        {.sequence = id, .ordinal = i, .page = page.page(), .generation = page.generation(), .seal = pool_.SealOf(page)});
  }
  return sealed;
}

void Engine::HoldForTransfer(SequenceId id, uint32_t ordinal) {
  Sequence& sequence = Get(id);
  CD_CHECK(sequence.state == SequenceState::kWaiting && ordinal < sequence.pages.size(),
           "I4: a page is read before its sequence runs");
  pool_.HoldForTransfer(sequence.pages[ordinal]);
}

absl::Status Engine::Adopt(SequenceId id, uint32_t ordinal, const kv::Verified& page, uint64_t origin, WrongPage* wrong) {
  Sequence& sequence = Get(id);
  CD_CHECK(sequence.state == SequenceState::kWaiting && ordinal < sequence.pages.size(),
           "I4: a page is adopted before its sequence runs");
  CD_CHECK(!sequence.adopted[ordinal].has_value(), "I4: a page is adopted once");
  ++counters_.checks[kv::CheckKind::kTags].made;
  ++sequence.checks[kv::CheckKind::kTags].made;
  ++sequence.checks[kv::CheckKind::kSeal].made;
  absl::Status status = pool_.Adopt(sequence.pages[ordinal], page);
  if (!status.ok()) {
    ++counters_.checks[kv::CheckKind::kTags].failed;
    if (wrong != nullptr) *wrong = Describe(sequence, ordinal, kv::CheckKind::kTags);
    Erase(sequence, {sequence.pages[ordinal].page()});
    return WithFacts(std::move(status), {.code = std::string(error_code::kIntegrity)});
  }
  sequence.adopted[ordinal] = page.seal();
  sequence.origins[ordinal] = origin;
  ++counters_.pages_adopted;
  return absl::OkStatus();
}

void Engine::CoverAdopted(Sequence& sequence) {
  const uint32_t page_tokens = pool_.layout().page_tokens();
  for (uint32_t i = sequence.sealed_pages; i < sequence.pages.size() && sequence.adopted[i].has_value(); ++i) {
    const uint64_t start = uint64_t{i} * page_tokens;
    const uint32_t count = sequence.adopted[i]->tokens;
    // I5 by our own tokens: an adopted page's identity was expected from exactly these.
    CD_CHECK(start == sequence.fed.size() && start + count <= sequence.tokens.size(),
             "I5: adopted pages cover tokens of the prompt without a gap");
    const auto first = sequence.tokens.begin() + static_cast<ptrdiff_t>(start);
    sequence.fed.insert(sequence.fed.end(), first, first + count);
    kv::IdentityChain chain = sequence.chain;
    CD_CHECK(chain.Append({&*first, count}) == sequence.adopted[i]->identity || FaultIsOn(Fault::kAdoptedNotCompared),
             "I5: a page is adopted where its own tokens stand");
    if (count < page_tokens) break;
    sequence.chain = chain;
    sequence.sums.push_back(pool_.RunChecksumsOf(sequence.pages[i]).data());
    Share(sequence, sequence.sealed_pages++);
  }
}

void Engine::ShareAdopted(SequenceId id) {
  Sequence& sequence = Get(id);
  CD_CHECK(sequence.state == SequenceState::kWaiting, "a sequence that runs has shared its adopted pages");
  CoverAdopted(sequence);
  CD_CHECK(sequence.fed.size() % pool_.layout().page_tokens() == 0, "whole pages are shared before a sequence runs");
}

void Engine::Run(SequenceId id) {
  Sequence& sequence = Get(id);
  CD_CHECK(sequence.state == SequenceState::kWaiting, "a sequence is let run once");
  CoverAdopted(sequence);
  CopyFromFork(sequence);
  if (FaultIsOn(Fault::kCoverageNotCounted) && sequence.generates())
    sequence.fed.assign(sequence.tokens.begin(), sequence.tokens.end() - 1);
  const bool complete = sequence.covered() == sequence.tokens.size();
  CD_CHECK(!complete || !sequence.generates(), "the last token of a prompt is always computed here");
  if (options_.verify_content) {
    counters_.content_checks_due +=
        static_cast<uint64_t>(std::ranges::count_if(sequence.adopted, [](const auto& page) { return page.has_value(); })) -
        sequence.cached_pages;
  }
  if (complete) {
    sequence.state = SequenceState::kHeld;
    return;
  }
  sequence.state = SequenceState::kRunning;
  running_.insert(std::ranges::upper_bound(running_, std::pair(sequence.spec.order, sequence.id), {},
                                           [](const Sequence* other) { return std::pair(other->spec.order, other->id); }),
                  &sequence);
}

void Engine::Share(Sequence& sequence, uint32_t ordinal) {
  if (!options_.prefix_cache || sequence.pages[ordinal].pin() != nullptr) return;
  const kv::PrefixCache::Pin* parent = nullptr;
  if (ordinal > 0) {
    // Somebody else's page stands in the tree for the one before: nothing of this sequence comes behind it.
    parent = sequence.pages[ordinal - 1].pin();
    if (parent == nullptr) return;
  }
  const uint32_t page_tokens = pool_.layout().page_tokens();
  auto result = cache_.Insert({sequence.spec.domain, sequence.spec.domain_key}, parent,
                              std::span(sequence.fed).subspan(size_t{ordinal} * page_tokens, page_tokens),
                              std::get<kv::PageHandle>(sequence.pages[ordinal].Take()), sequence.origins[ordinal]);
  sequence.pages[ordinal] = std::visit([](auto& page) { return PageRef(std::move(page)); }, result);
}

uint64_t Engine::DropOrigin(uint64_t origin) {
  for (const auto& [id, sequence] : sequences_) {
    if (std::ranges::find(sequence->origins, origin) != sequence->origins.end()) sequence->may_be_copied = false;
  }
  return cache_.DropOrigin(origin, NowUnderWay());
}

void Engine::Release(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
#ifdef COFFERDAM_FAULTS
  const bool runs = found->second->generates() && std::ranges::find(running_, found->second.get()) != running_.end();
  if (FaultIsOn(Fault::kFinishedRowComputes) && runs) AddLateRow(*found->second);
#endif
  Erase(*found->second, {});
}

void Engine::Erase(Sequence& sequence, const std::vector<PageId>& quarantine) {
  std::erase(running_, &sequence);
  // With a row of its own still under way, the sequence is through only when the next step is.
  const bool late = FaultIsOn(Fault::kFinishedRowComputes) && sequence.generates();
  const StepEpoch epoch(steps_started_ + (late ? 1 : 0));
  for (PageRef& page : sequence.pages) {
    const bool bad = std::ranges::find(quarantine, page.page()) != quarantine.end();
    if (bad) cache_.Condemn(page.page(), epoch);
    auto taken = page.Take();
    if (auto* pin = std::get_if<kv::PrefixCache::Pin>(&taken)) {
      cache_.Unpin(std::move(*pin), epoch);
    } else if (bad) {
      pool_.Quarantine(std::get<kv::PageHandle>(std::move(taken)));
    } else {
      pool_.Release(std::get<kv::PageHandle>(std::move(taken)), epoch);
    }
  }
  sequences_.erase(sequence.id);
}

}  // namespace cofferdam::engine
