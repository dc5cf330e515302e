#include <algorithm>
#include <cstring>
#include <utility>

#include "base/faults.h"
#include "sim/decode.h"
#include "sim/network.h"
#include "sim/prefill.h"
#include "sim/world.h"

namespace cofferdam::sim {

std::shared_ptr<Fabric::Reader> Fabric::Connect(size_t decode, size_t prefill) {
  auto reader = std::make_shared<Reader>();
  reader->decode_ = decode;
  reader->prefill_ = prefill;
  reader->decode_boot_ = world_.decode(decode).boot_id();
  reader->prefill_boot_ = world_.prefill(prefill).boot_id();
  return reader;
}

void Fabric::Read(const std::shared_ptr<Reader>& reader, const handoff::RemotePage& source, const ReadTarget& target, Done done) {
  const uint64_t id = next_copy_++;
  Copy& copy = copies_[id];
  copy = {.reader = reader, .source = source, .target = target, .done = std::move(done), .disturbed = {}, .at_source = {}};
  if (reader->closed_) return End(id, absl::UnavailableError("the connection is closed"));
  reader->reads_.insert(id);
  if (auto& disturbed = disturbed_[reader->decode_]; !disturbed.empty()) {
    copy.disturbed = disturbed.back();
    disturbed.pop_back();
  }
  const auto part = [this] {
    const uint64_t slow = world_.scenario().slow_messages;
    return microseconds(slow > 0 && random_.OneIn(slow) ? random_.Between(500, 30'000) : random_.Between(5, 150));
  };
  const Time first = world_.clock().now() + part();
  world_.MemoryAt(first, {Gate::kFirstHalf, target.fetch, target.ordinal}, [this, id] { CopyPart(id, true); });
  world_.MemoryAt(first + part(), {Gate::kSecondHalf, target.fetch, target.ordinal}, [this, id] { CopyPart(id, false); });
}

const std::byte* Fabric::SourceOf(const Copy& copy, absl::Status& status) const {
  const Prefill& worker = world_.prefill(copy.reader->prefill_);
  if (!worker.alive() || worker.boot_id() != copy.reader->prefill_boot_) {
    status = absl::UnavailableError("the source is gone");
  } else if (copy.source.region != worker.boot_id()) {
    status = absl::InvalidArgumentError("another region");
  } else if (copy.source.offset + copy.target.bytes.size() > worker.memory().size()) {
    status = absl::InvalidArgumentError("outside of the region");
  } else if (copy.disturbed.has_value() && copy.disturbed->first == FaultKind::kFailRead) {
    status = absl::UnavailableError("the read failed");
  } else {
    return worker.memory().data() + copy.source.offset;
  }
  return nullptr;
}

void Fabric::CopyPart(uint64_t id, bool first) {
  const auto found = copies_.find(id);
  if (found == copies_.end()) return;  // its connection was closed
  Copy& copy = found->second;
  Decode& worker = world_.decode(copy.reader->decode_);
  if (worker.boot_id() != copy.reader->decode_boot_) {
    copies_.erase(found);
    return;
  }
  absl::Status status;
  const std::byte* const source = SourceOf(copy, status);
  if (source == nullptr) return End(id, status);
  const size_t half = copy.target.bytes.size() / 2;
  if (first) {
    worker.OnCopied(copy.target);
    std::memcpy(copy.target.bytes.data(), source, half);
    if (FaultIsOn(Fault::kCheckedAtSource)) copy.at_source.assign(source, source + copy.target.bytes.size());
    if (FaultIsOn(Fault::kDoneTooEarly)) std::exchange(copy.done, nullptr)(absl::OkStatus(), copy.at_source);
    return;
  }
  worker.OnCopied(copy.target);
  const bool torn = copy.disturbed.has_value() && copy.disturbed->first == FaultKind::kTearRead;
  if (!torn) std::memcpy(copy.target.bytes.data() + half, source + half, half);
  if (copy.disturbed.has_value() && copy.disturbed->first == FaultKind::kFlipArrival) {
    const uint64_t bit = copy.disturbed->second % (copy.target.bytes.size() * 8);
    copy.target.bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  }
  End(id, absl::OkStatus());
}

void Fabric::End(uint64_t id, absl::Status status) {
  auto ended = copies_.extract(id);
  Copy& copy = ended.mapped();
  copy.reader->reads_.erase(id);
  if (copy.done != nullptr) copy.done(std::move(status), copy.at_source);
}

void Fabric::Close(Reader& reader) {
  reader.closed_ = true;
  for (const uint64_t id : std::set(reader.reads_)) End(id, absl::UnavailableError("the connection was closed"));
}

}  // namespace cofferdam::sim
