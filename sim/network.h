// The network between decode and prefill workers: streams whose messages take time and keep their order, and one-sided reads that
// copy a page in two parts.
#ifndef COFFERDAM_SIM_NETWORK_H_
#define COFFERDAM_SIM_NETWORK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "handoff/types.h"
#include "sim/clock.h"
#include "sim/random.h"
#include "sim/scenario.h"

namespace cofferdam::sim {

class World;

// What opens a stream, and what comes back over it. The production servers say the same in protocol buffers.
struct OpenRun {
  handoff::AttemptId attempt;
  uint32_t domain = 0;
  std::vector<TokenId> tokens;
  uint32_t first_page = 0;
  uint64_t order = 0;
  bool recompute = false;
};
struct AdmittedMessage {};
struct SealedMessage {
  std::vector<handoff::AnnouncedPage> pages;
};
struct BeatMessage {
  uint64_t steps = 0;
};
struct ToDecode {
  handoff::AttemptId attempt;
  std::variant<AdmittedMessage, SealedMessage, BeatMessage> body;
};

using StreamId = uint64_t;
using FetchId = uint64_t;

class Network {
 public:
  Network(World& world, uint64_t seed);

  StreamId Open(size_t decode, size_t prefill, FetchId fetch, OpenRun run);
  void SendToDecode(StreamId stream, ToDecode message);
  void SendBeatToPrefill(StreamId stream, uint32_t covered_pages);
  // Each side's own end. The other learns of it; so does the one that ends it, as with a call of gRPC.
  void CloseByDecode(StreamId stream);
  void EndByPrefill(StreamId stream, const absl::Status& status);
  // Both sides lose it, at different times.
  void Break(StreamId stream);
  void BreakAllOf(bool decode, size_t worker);
  // A stream of this decode worker, if it has one.
  std::optional<StreamId> AnyStreamOf(size_t decode, uint64_t draw) const;
  size_t streams() const { return streams_.size(); }
  // Its heartbeats get lost from then on.
  void Mute(StreamId stream) { muted_.insert(stream); }

  void Cut(size_t decode, size_t prefill, Time until) { cut_[{decode, prefill}] = until; }
  bool IsCut(size_t decode, size_t prefill) const;
  // What happens to the next message to this decode worker.
  void Disturb(size_t decode, FaultKind kind, uint64_t amount) { disturbed_[decode].push_back({kind, amount}); }
  // From then on nothing is disturbed any more.
  void Calm();

  Duration Delay();

 private:
  struct Stream {
    size_t decode = 0, prefill = 0;
    uint64_t decode_boot = 0, prefill_boot = 0;
    FetchId fetch = 0;
    Time last_to_decode{}, last_to_prefill{};
    bool decode_told = false, prefill_told = false;  // of its end, or about to be
  };
  Time ArrivalAt(const Stream& stream, Time& last);
  void Deliver(const Stream& stream, ToDecode message);
  void DeliverDisturbed(const Stream& stream, ToDecode message);
  void TellDecode(Stream& stream, const absl::Status& status);
  void TellPrefill(StreamId id, Stream& stream);
  void ForgetIfOver(StreamId id);

  World& world_;
  Random random_;
  std::map<StreamId, Stream> streams_;
  StreamId next_stream_ = 1;
  std::set<StreamId> muted_;
  std::map<std::pair<size_t, size_t>, Time> cut_;
  std::map<size_t, std::vector<std::pair<FaultKind, uint64_t>>> disturbed_;
};

// Where the bytes of a read lie, and whose it is.
struct ReadTarget {
  std::span<std::byte> bytes;
  PageId page;
  Generation generation;
  FetchId fetch = 0;
  uint32_t ordinal = 0;
};

class Fabric {
 public:
  // Called on the way, when the bytes are there or never will be; `at_source`: as they were when the read began
  // (Fault::kCheckedAtSource).
  using Done = std::function<void(absl::Status, const std::vector<std::byte>& at_source)>;

  Fabric(World& world, uint64_t seed) : world_(world), random_(seed, 101) {}

  // A connection of two processes.
  class Reader {
   public:
    bool closed() const { return closed_; }

   private:
    friend class Fabric;
    size_t decode_ = 0, prefill_ = 0;
    uint64_t decode_boot_ = 0, prefill_boot_ = 0;
    bool closed_ = false;
    std::set<uint64_t> reads_;
  };
  std::shared_ptr<Reader> Connect(size_t decode, size_t prefill);
  void Read(const std::shared_ptr<Reader>& reader, const handoff::RemotePage& source, const ReadTarget& target, Done done);
  // What is outstanding ends with an error, before this returns.
  void Close(Reader& reader);
  // Of the next read of this decode worker.
  void Disturb(size_t decode, FaultKind kind, uint64_t amount) { disturbed_[decode].push_back({kind, amount}); }
  void Calm() { disturbed_.clear(); }

 private:
  struct Copy {
    std::shared_ptr<Reader> reader;
    handoff::RemotePage source;
    ReadTarget target;
    Done done;
    std::optional<std::pair<FaultKind, uint64_t>> disturbed;
    std::vector<std::byte> at_source;
  };
  void CopyPart(uint64_t id, bool first);
  void CopyRest(const Copy& copy);
  void End(uint64_t id, absl::Status status);
  // Null: the source is not there any more, or the page lies outside of it.
  const std::byte* SourceOf(const Copy& copy, absl::Status& status) const;

  World& world_;
  Random random_;
  std::map<uint64_t, Copy> copies_;
  uint64_t next_copy_ = 1;
  std::map<size_t, std::vector<std::pair<FaultKind, uint64_t>>> disturbed_;
};

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_NETWORK_H_
