#include "sim/network.h"

#include <algorithm>

#include "sim/decode.h"
#include "sim/prefill.h"
#include "sim/world.h"

namespace cofferdam::sim {
namespace {

// What an announcement may be spoiled to.
void Spoil(ToDecode& message, uint64_t amount) {
  auto* const sealed = std::get_if<SealedMessage>(&message.body);
  if (sealed == nullptr) return;
  handoff::AnnouncedPage& page = sealed->pages[amount % sealed->pages.size()];
  switch (amount / 64 % 6) {
    case 0:
      page.ordinal += static_cast<uint32_t>(1 + amount / 512 % 4);
      break;
    case 1:
      page.seal.identity[amount / 512 % 16] ^= 1;
      break;
    case 2:
      page.seal.tokens ^= 1;
      break;
    case 3:
      page.seal.checksum ^= 1;
      break;
    case 4:
      page.source.offset += SimLayout().page_bytes() * (1 + amount / 512 % 8);
      break;
    default:
      page.source.region ^= 1;
  }
}

}  // namespace

Network::Network(World& world, uint64_t seed) : world_(world), random_(seed, 100) {}

Duration Network::Delay() {
  if (const uint64_t slow = world_.scenario().slow_messages; slow > 0 && random_.OneIn(slow))
    return microseconds(random_.Between(1'000, 60'000));
  return microseconds(random_.Between(20, 500));
}

bool Network::IsCut(size_t decode, size_t prefill) const {
  const auto cut = cut_.find({decode, prefill});
  return cut != cut_.end() && cut->second > world_.clock().now();
}

Time Network::ArrivalAt(const Stream& stream, Time& last) {
  Time at = world_.clock().now() + Delay();
  if (IsCut(stream.decode, stream.prefill)) at = cut_.at({stream.decode, stream.prefill}) + Delay();
  last = std::max(last + Duration(1), at);
  return last;
}

StreamId Network::Open(size_t decode, size_t prefill, FetchId fetch, OpenRun run) {
  const StreamId id = next_stream_++;
  Stream& stream = streams_[id];
  stream = {.decode = decode,
            .prefill = prefill,
            .decode_boot = world_.decode(decode).boot_id(),
            .prefill_boot = world_.prefill(prefill).boot_id(),
            .fetch = fetch};
  if (!world_.prefill(prefill).alive()) {
    Break(id);
    return id;
  }
  world_.At(ArrivalAt(stream, stream.last_to_prefill), {Gate::kOpen, id}, [this, id, prefill, boot = stream.prefill_boot, run] {
    Prefill& worker = world_.prefill(prefill);
    if (worker.boot_id() == boot) worker.Post([&worker, id, run] { worker.OnOpen(id, run); });
  });
  return id;
}

void Network::Deliver(const Stream& stream, ToDecode message) {
  Decode& worker = world_.decode(stream.decode);
  if (worker.boot_id() != stream.decode_boot) return;
  worker.Post([&worker, fetch = stream.fetch, message = std::move(message)] { worker.OnPrefillMessage(fetch, message); });
}

void Network::DeliverDisturbed(const Stream& stream, ToDecode message) {
  auto& disturbed = disturbed_[stream.decode];
  if (disturbed.empty() || std::holds_alternative<BeatMessage>(message.body)) return Deliver(stream, std::move(message));
  const auto [kind, amount] = disturbed.back();
  disturbed.pop_back();
  if (kind == FaultKind::kDropMessage) return;
  if (kind == FaultKind::kSpoilMessage) Spoil(message, amount);
  if (kind == FaultKind::kMisdeliver) {
    Stream other = stream;
    Decode& worker = world_.decode(stream.decode);
    if (const auto fetch = worker.AnyFetchBut(stream.fetch, amount)) {
      other.fetch = *fetch;
      Deliver(other, message);
    }
  }
  if (kind == FaultKind::kRepeatMessage) Deliver(stream, message);
  Deliver(stream, std::move(message));
}

void Network::SendToDecode(StreamId id, ToDecode message) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || found->second.prefill_told) return;
  Stream& stream = found->second;
  if (std::holds_alternative<BeatMessage>(message.body) && muted_.contains(id)) return;
  const Time at = ArrivalAt(stream, stream.last_to_decode);
  const auto* const sealed = std::get_if<SealedMessage>(&message.body);
  const GateKey key{Gate::kAnnounced, stream.fetch, sealed == nullptr ? 0 : sealed->pages.front().ordinal};
  // The stream may be forgotten before it arrives, and is its own receipt.
  auto deliver = [this, stream, message = std::move(message)]() mutable { DeliverDisturbed(stream, std::move(message)); };
  if (sealed == nullptr) return world_.clock().At(at, std::move(deliver));
  world_.At(at, key, std::move(deliver));
}

void Network::SendBeatToPrefill(StreamId id, uint32_t covered_pages) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || found->second.decode_told) return;
  Stream& stream = found->second;
  world_.clock().At(ArrivalAt(stream, stream.last_to_prefill),
                    [this, id, prefill = stream.prefill, boot = stream.prefill_boot, covered_pages] {
                      Prefill& worker = world_.prefill(prefill);
                      if (worker.boot_id() != boot) return;
                      worker.Post([&worker, id, covered_pages] { worker.OnPeerBeat(id, covered_pages); });
                    });
}

void Network::TellDecode(Stream& stream, const absl::Status& status) {
  if (std::exchange(stream.decode_told, true)) return;
  world_.At(ArrivalAt(stream, stream.last_to_decode), {Gate::kEnded, stream.fetch},
            [this, decode = stream.decode, boot = stream.decode_boot, fetch = stream.fetch, status] {
              Decode& worker = world_.decode(decode);
              if (worker.boot_id() == boot) worker.Post([&worker, fetch, status] { worker.OnPrefillEnded(fetch, status); });
            });
}

void Network::TellPrefill(StreamId id, Stream& stream) {
  if (std::exchange(stream.prefill_told, true)) return;
  world_.At(ArrivalAt(stream, stream.last_to_prefill), {Gate::kClosed, id},
            [this, id, prefill = stream.prefill, boot = stream.prefill_boot] {
              Prefill& worker = world_.prefill(prefill);
              if (worker.boot_id() == boot) worker.Post([&worker, id] { worker.OnClosed(id); });
            });
}

void Network::ForgetIfOver(StreamId id) {
  const Stream& stream = streams_.at(id);
  if (stream.decode_told && stream.prefill_told) streams_.erase(id);
}

void Network::CloseByDecode(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  TellPrefill(id, found->second);
  TellDecode(found->second, absl::CancelledError("closed"));
  ForgetIfOver(id);
}

void Network::EndByPrefill(StreamId id, const absl::Status& status) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  TellDecode(found->second, status);
  TellPrefill(id, found->second);
  ForgetIfOver(id);
}

void Network::Break(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  TellDecode(found->second, absl::UnavailableError("the connection broke"));
  TellPrefill(id, found->second);
  ForgetIfOver(id);
}

void Network::BreakAllOf(bool decode, size_t worker) {
  std::vector<StreamId> ids;
  for (const auto& [id, stream] : streams_) {
    if ((decode ? stream.decode : stream.prefill) == worker) ids.push_back(id);
  }
  for (const StreamId id : ids) Break(id);
}

std::optional<StreamId> Network::AnyStreamOf(size_t decode, uint64_t draw) const {
  std::vector<StreamId> ids;
  for (const auto& [id, stream] : streams_) {
    if (stream.decode == decode) ids.push_back(id);
  }
  if (ids.empty()) return std::nullopt;
  return ids[draw % ids.size()];
}

void Network::Calm() {
  disturbed_.clear();
  cut_.clear();
}

}  // namespace cofferdam::sim
