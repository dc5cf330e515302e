// Forks: sequences of one domain whose tokens part in the middle of a page. They share the whole pages before it through the
// prefix cache; that one each writes itself, so that the later one starts with a copy of what the other has of it.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"
#include "engine/sequence.h"

namespace cofferdam::engine {
namespace {
constexpr uint64_t kLeastCopiedTokens = 4;  // fewer are not worth a line in the tenure log
}  // namespace

Engine::Fork Engine::FindFork(const Sequence& sequence) const {
  const uint32_t page_tokens = pool_.layout().page_tokens();
  // Before Run the cached pages do not count as covered yet.
  const uint32_t ordinal = std::max(sequence.sealed_pages, sequence.cached_pages);
  const uint64_t start = uint64_t{ordinal} * page_tokens;
  // A page that a peer has filled, whole or in part, is not written over.
  if (!options_.prefix_cache || ordinal >= sequence.pages.size() || sequence.adopted[ordinal].has_value()) return {};
  // A page is full only when a step has filled it, and every sequence that runs has something to compute.
  const uint64_t end = std::min<uint64_t>(start + page_tokens, sequence.tokens.size()) - 1;
  Fork best;
  for (const auto& [id, other] : sequences_) {
    if (other.get() == &sequence || other->state == SequenceState::kWaiting) continue;
    // I10, as in the cache. The pages before are the same ones, so their tokens have been compared.
    if (other->spec.domain != sequence.spec.domain || other->spec.domain_key != sequence.spec.domain_key) continue;
    if (other->covered() <= start || !other->may_be_copied || other->pages[ordinal].bad()) continue;
    if (ordinal > 0 && other->pages[ordinal - 1].generation() != sequence.pages[ordinal - 1].generation()) continue;
    const auto first = sequence.tokens.begin() + static_cast<ptrdiff_t>(start);
    const auto fed = other->fed.begin() + static_cast<ptrdiff_t>(start);
    const auto parted = std::mismatch(first, sequence.tokens.begin() + static_cast<ptrdiff_t>(end), fed, other->fed.end());
    const auto tokens = static_cast<uint32_t>(parted.first - first);
    if (tokens > best.tokens) best = {.from = other.get(), .tokens = tokens};
  }
  return best.tokens >= kLeastCopiedTokens ? best : Fork();
}

uint32_t Engine::TokensToCopy(SequenceId id) { return FindFork(Get(id)).tokens; }

void Engine::CopyFromFork(Sequence& sequence) {
  const uint32_t ordinal = sequence.sealed_pages;
  const Fork fork = FindFork(sequence);
  if (fork.from == nullptr) return;
  const PageRef& source = fork.from->pages[ordinal];
  const PageRef& page = sequence.pages[ordinal];
  CD_CHECK(pool_.StateOf(page.page()) == kv::PageState::kReserved, "I5: nothing but its own sequence fills a page");
  // I6: the tags before and after, and the bytes where a seal speaks of them.
  const bool own = pool_.TagsMatch(source.page(), source.generation());
  const std::span<std::byte> to = pool_.Payload(page.page());
  if (own) std::ranges::copy(std::as_const(pool_).Payload(source.page()), to.begin());
  bool good = own && pool_.TagsMatch(source.page(), source.generation()) && pool_.TagsMatch(page.page(), page.generation());
  if (good && pool_.StateOf(source.page()) != kv::PageState::kFilling) {
    ++counters_.checks[kv::CheckKind::kScrub].made;
    good = kv::PayloadChecksum(pool_.layout(), to) == pool_.SealOf(source).checksum;
  }
  // What is wrong with the source is found by those that read it; here it is only not used.
  kv::ZeroBeyond(pool_.layout(), to, good ? fork.tokens : 0);
  if (!good) return;
  pool_.MarkFilling(page);
  // As recorded with the source, not as asked for.
  const auto fed = fork.from->fed.begin() + static_cast<ptrdiff_t>(sequence.covered());
  sequence.fed.insert(sequence.fed.end(), fed, fed + fork.tokens);
  sequence.origins[ordinal] = source.pin() != nullptr ? source.pin()->origin() : fork.from->origins[ordinal];
  counters_.tokens_copied += fork.tokens;
  found_.push_back(CopiedEvent{.sequence = sequence.id, .page = source.page(), .generation = source.generation()});
}

}  // namespace cofferdam::engine
