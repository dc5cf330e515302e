// The spot check of content: layer 0's K and V of adopted pages, computed again.
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error.h"
#include "base/faults.h"
#include "engine/engine.h"
#include "engine/sequence.h"
#include "kv/zero.h"

namespace cofferdam::engine {
namespace {

constexpr uint64_t kWholePageEvery = 64;  // handoffs
constexpr size_t kSamplesAtOnce = 64;     // bounds the scratch memory: layer 0 of so many pages
// Numbers of another processor may differ in their last bits; those of another token differ by about their own size.
constexpr float kTolerance = 1.0f / 128;  // of the largest of the vector

float Half(const std::byte* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return ggml_fp16_to_fp32(bits);
}

// Whether the K and V vectors of one slot and KV head are the same in two pages; `a` and `b` are payloads.
bool SameSlot(const kv::Layout& layout, uint32_t head, uint32_t slot, const std::byte* a, const std::byte* b) {
  const auto same = [&](size_t offset, uint32_t size, auto element) {
    float most = 0, apart = 0;
    for (uint32_t d = 0; d < size; ++d) {
      const size_t at = offset + 2 * element(d);
      const float x = Half(a + at), y = Half(b + at);
      if (!std::isfinite(x) || !std::isfinite(y)) return false;
      most = std::max({most, std::fabs(x), std::fabs(y)});
      apart = std::max(apart, std::fabs(x - y));
    }
    return apart <= kTolerance * most;
  };
  return same(layout.KOffset(0, head), layout.spec().head_size_k, [&](uint32_t d) { return layout.KElement(slot, d); }) &&
         same(layout.VOffset(0, head), layout.spec().head_size_v, [&](uint32_t d) { return layout.VElement(slot, d); });
}

}  // namespace

bool Engine::SameContent(const Sequence& sequence, std::span<const ContentSample> samples, absl::Status& status) {
  const kv::Layout& layout = pool_.layout();
  const size_t bytes = layout.spec().kv_heads * layout.run_bytes();
  scratch_.resize((kSamplesAtOnce + 1) * bytes);
  // One table for all: every page that has a sample gets scratch of its own, the others share the first.
  std::vector<std::byte*> pages(sequence.pages.size(), scratch_.data());
  const std::span<std::byte* const> table(pages);
  size_t used = 1;
  std::vector<model::BatchRow> rows;
  for (const ContentSample& sample : samples) {
    const uint32_t position = sample.ordinal * layout.page_tokens() + sample.slot;
    if (pages[sample.ordinal] == scratch_.data()) pages[sample.ordinal] += used++ * bytes;
    rows.push_back({.token = sequence.tokens[position], .position = position});
  }
  status = executor_.RunFirstLayer({.rows = rows, .tables = {&table, 1}});
  bool same = true;
  for (size_t i = 0; status.ok() && same && i < samples.size(); ++i) {
    for (uint32_t head = 0; head < layout.spec().kv_heads; ++head) {
      const uint32_t ordinal = samples[i].ordinal;
      same = same && SameSlot(layout, head, samples[i].slot, pages[ordinal], sequence.payloads[ordinal]);
    }
  }
  // It held keys and values of this prompt; and what a later call does not write must not look like an answer.
  kv::ZeroBytes(std::span(scratch_).first(used * bytes));
  return same;
}

absl::Status Engine::CheckAdopted(SequenceId id, kv::CheckKind* failed) {
  const CheckTimer timer(counters_.check_time);
  Sequence& sequence = Get(id);
  CD_CHECK(sequence.state == SequenceState::kWaiting, "adopted pages are checked before a sequence runs");
  kv::IdentityChain chain = sequence.chain;
  const uint32_t page_tokens = pool_.layout().page_tokens();
  bool own = true;
  for (uint32_t i = sequence.sealed_pages; i < sequence.adopted.size() && sequence.adopted[i].has_value(); ++i) {
    const std::span<const TokenId> rest = std::span(sequence.tokens).subspan(size_t{i} * page_tokens);
    own = own &&
          sequence.adopted[i]->identity == chain.Append(rest.first(std::min<size_t>(sequence.adopted[i]->tokens, rest.size())));
  }
  if (!own && !FaultIsOn(Fault::kAdoptedNotCompared)) {
    ++counters_.checks[kv::CheckKind::kSeal].failed;
    if (failed != nullptr) *failed = kv::CheckKind::kSeal;
    return WithFacts(absl::DataLossError("pages that a worker sent are those of other tokens"),
                     {.code = std::string(error_code::kIntegrity)});
  }
  absl::Status status = CheckContent(sequence);
  if (!status.ok() && failed != nullptr) *failed = kv::CheckKind::kContent;
  if (status.ok()) {
    while (sequence.checked_pages < sequence.adopted.size() && sequence.adopted[sequence.checked_pages].has_value())
      ++sequence.checked_pages;
  }
  return status;
}

absl::Status Engine::CheckContent(Sequence& sequence) {
  if (!options_.verify_content || FaultIsOn(Fault::kContentNotChecked)) return absl::OkStatus();
  std::vector<ContentSample> samples, whole;
  for (uint32_t i = std::max(sequence.cached_pages, sequence.checked_pages); i < sequence.adopted.size(); ++i) {
    if (!sequence.adopted[i].has_value()) continue;
    samples.push_back({.ordinal = i, .slot = static_cast<uint32_t>(sample_random_() % sequence.adopted[i]->tokens)});
  }
  if (samples.empty()) return absl::OkStatus();
  if (++content_checks_ % kWholePageEvery == 0) {
    const uint32_t page = samples[sample_random_() % samples.size()].ordinal;
    for (uint32_t slot = 0; slot < sequence.adopted[page]->tokens; ++slot) whole.push_back({.ordinal = page, .slot = slot});
  }
  const size_t at_once = std::min<size_t>(kSamplesAtOnce, options_.chunk_tokens);
  bool same = true;
  absl::Status status;
  for (const std::vector<ContentSample>& all : {samples, whole}) {
    for (size_t first = 0; first < all.size() && same && status.ok(); first += at_once) {
      same = SameContent(sequence, std::span(all).subspan(first, std::min(at_once, all.size() - first)), status);
    }
  }
  if (!status.ok()) return status;
  counters_.checks[kv::CheckKind::kContent].made += samples.size();
  sequence.checks[kv::CheckKind::kContent].made += samples.size();
  if (same) return absl::OkStatus();
  ++counters_.checks[kv::CheckKind::kContent].failed;
  return WithFacts(absl::DataLossError("pages that a worker sent do not hold the K and V of this prompt's tokens"),
                   {.code = std::string(error_code::kIntegrity)});
}

}  // namespace cofferdam::engine
