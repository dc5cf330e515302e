#include "worker/wire.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cofferdam::worker {
namespace {

constexpr int kMaxStopTokens = 1024, kMaxBiases = 1024;

bool TakeDigest(const std::string& bytes, kv::Digest128& digest) {
  if (bytes.size() != digest.size()) return false;
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(digest.data()));
  return true;
}

}  // namespace

uint64_t OrderOf(uint32_t priority) {
  const auto when = std::chrono::steady_clock::now().time_since_epoch() + std::chrono::seconds(priority);
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(when).count());
}

void ToWire(const handoff::AttemptId& attempt, v1::Attempt* wire) {
  wire->set_boot_id(attempt.boot_id);
  wire->set_counter(attempt.counter);
}

handoff::AttemptId FromWire(const v1::Attempt& wire) { return {.boot_id = wire.boot_id(), .counter = wire.counter()}; }

std::string ToWire(const kv::Digest128& digest) { return {digest.begin(), digest.end()}; }

absl::StatusOr<kv::Digest128> DigestFromWire(const std::string& wire) {
  kv::Digest128 digest{};
  if (!TakeDigest(wire, digest)) return absl::InvalidArgumentError("a digest has 16 bytes");
  return digest;
}

void ToWire(const kv::CheckCounts& checks, v1::Finished* wire) {
  for (const kv::CheckKind kind : kv::kAllCheckKinds) {
    if (checks[kind].made == 0) continue;
    v1::CheckCount* count = wire->add_checks();
    count->set_kind(std::string(kv::ToString(kind)));
    count->set_pages(checks[kind].made);
  }
}

void ToWire(const handoff::AnnouncedPage& page, v1::SealedPage* wire) {
  wire->set_ordinal(page.ordinal);
  wire->set_region(page.source.region);
  wire->set_offset(page.source.offset);
  wire->set_generation(page.source.generation);
  wire->mutable_seal()->set_identity(ToWire(page.seal.identity));
  wire->mutable_seal()->set_tokens(page.seal.tokens);
  wire->mutable_seal()->set_layout_id(ToWire(page.seal.layout_id));
  wire->mutable_seal()->set_checksum(page.seal.checksum);
}

absl::StatusOr<handoff::AnnouncedPage> FromWire(const v1::SealedPage& wire) {
  handoff::AnnouncedPage page;
  page.ordinal = wire.ordinal();
  page.source = {.region = wire.region(), .offset = wire.offset(), .generation = wire.generation()};
  page.seal.tokens = wire.seal().tokens();
  page.seal.checksum = wire.seal().checksum();
  if (!TakeDigest(wire.seal().identity(), page.seal.identity) || !TakeDigest(wire.seal().layout_id(), page.seal.layout_id)) {
    return absl::InvalidArgumentError("a seal's identity and layout id have 16 bytes each");
  }
  return page;
}

absl::StatusOr<engine::SequenceSpec> FromWire(const v1::GenerateRequest& wire) {
  const v1::Sampling& sampling = wire.sampling();
  if (sampling.bias_tokens_size() != sampling.bias_values_size() || sampling.bias_tokens_size() > kMaxBiases) {
    return absl::InvalidArgumentError(absl::StrCat("logit_bias must pair at most ", kMaxBiases, " tokens with values"));
  }
  if (wire.stop_tokens_size() > kMaxStopTokens)
    return absl::InvalidArgumentError(absl::StrCat("at most ", kMaxStopTokens, " stop tokens are allowed"));
  if (wire.request_id().size() > kMaxIdBytes || wire.domain().size() > kMaxIdBytes || wire.cache_salt().size() > kMaxIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("request id, domain and cache_salt have at most ", kMaxIdBytes, " bytes each"));
  }
  if (wire.priority() > kMaxPriority) return absl::InvalidArgumentError(absl::StrCat("priority is 0 to ", kMaxPriority));
  engine::SequenceSpec spec;
  spec.order = OrderOf(wire.priority());
  spec.tokens.assign(wire.tokens().begin(), wire.tokens().end());
  spec.resumed_tokens = wire.resumed_tokens();
  spec.max_output = wire.max_tokens();
  spec.min_output = wire.min_tokens();
  spec.top_logprobs = wire.top_logprobs();
  spec.stop_tokens.assign(wire.stop_tokens().begin(), wire.stop_tokens().end());
  if (!wire.has_sampling()) {
    spec.sampling = model::SamplingParams{.temperature = 0};
    return spec;
  }
  spec.sampling = model::SamplingParams{.temperature = sampling.temperature(),
                                        .top_p = sampling.top_p(),
                                        .min_p = sampling.min_p(),
                                        .repetition_penalty = sampling.repetition_penalty(),
                                        .presence_penalty = sampling.presence_penalty(),
                                        .frequency_penalty = sampling.frequency_penalty(),
                                        .top_k = sampling.top_k(),
                                        .seed = sampling.seed(),
                                        .logit_bias = {}};
  for (int i = 0; i < sampling.bias_tokens_size(); ++i)
    spec.sampling->logit_bias.emplace_back(sampling.bias_tokens(i), sampling.bias_values(i));
  return spec;
}

absl::StatusOr<engine::SequenceSpec> FromWire(const v1::Open& wire) {
  if (wire.request_id().size() > kMaxIdBytes || wire.domain().size() > kMaxIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("request id and domain have at most ", kMaxIdBytes, " bytes"));
  }
  if (wire.cache_salt().size() > kMaxIdBytes)
    return absl::InvalidArgumentError(absl::StrCat("cache_salt has at most ", kMaxIdBytes, " bytes"));
  if (wire.priority() > kMaxPriority) return absl::InvalidArgumentError(absl::StrCat("priority is 0 to ", kMaxPriority));
  engine::SequenceSpec spec;
  spec.order = OrderOf(wire.priority());
  spec.tokens.assign(wire.tokens().begin(), wire.tokens().end());
  return spec;
}

void Deliver(const v1::PrefillEvent& event, handoff::Time now, handoff::DecodeHandoff& handoff, handoff::DecodeActions& actions) {
  const handoff::AttemptId attempt = FromWire(event.attempt());
  if (event.has_admitted()) {
    handoff.OnAdmitted(attempt, now, actions);
  } else if (event.has_heartbeat()) {
    handoff.OnHeartbeat(attempt, event.heartbeat().steps(), now, actions);
  } else if (event.has_sealed()) {
    std::vector<handoff::AnnouncedPage> pages;
    for (const v1::SealedPage& wire : event.sealed().pages()) {
      auto page = FromWire(wire);
      if (!page.ok()) return handoff.OnMalformed(attempt, page.status(), actions);
      pages.push_back(*std::move(page));
    }
    handoff.OnAnnounced(attempt, pages, now, actions);
  }
}

}  // namespace cofferdam::worker
