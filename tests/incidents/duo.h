// A prefill and a decode worker in one thread: both engines with their pools and both sides of the handoff, as the servers drive
// them, but with messages and reads that move when the test says so. Time is the test's, too.
#ifndef COFFERDAM_TESTS_INCIDENTS_DUO_H_
#define COFFERDAM_TESTS_INCIDENTS_DUO_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "handoff/decode_handoff.h"
#include "handoff/prefill_handoff.h"
#include "model/executor.h"
#include "model/model.h"

namespace cofferdam::incidents {

using Tokens = std::vector<TokenId>;

struct Token {
  TokenId token = 0;
  uint32_t logprob_bits = 0;  // tells apart what the token alone would hide
  friend bool operator==(const Token&, const Token&) = default;
};
using Answer = std::vector<Token>;

struct DuoOptions {
  uint64_t prefill_context = 256, decode_context = 256;
  uint64_t pages = 64;  // of each pool
  uint32_t prefill_chunk_tokens = 32;
  engine::VerifyReads verify{};
  bool prefix_cache = false;  // in both workers
};

// Everything is reused last-in first-out. One thread.
class Duo {
 public:
  // REQUIRES: pages of 16 tokens.
  Duo(std::shared_ptr<const model::Model> model, const DuoOptions& options);
  ~Duo();

  // What a tenant asks; ends with `status`, or OK with the whole answer.
  struct Request {
    std::string domain;
    engine::SequenceSpec spec;
    bool done = false;
    absl::Status status;
    Answer answer;
    // Decode's side.
    std::optional<SequenceId> sequence;
    std::unique_ptr<handoff::DecodeHandoff> decode;  // null when decode has what it needs
    uint32_t cached_pages = 0;                       // found by decode; those that prefill found are its engine's to know
    handoff::AttemptId attempt;
    struct Read {
      handoff::IssueRead what;
      engine::Engine::PageView into;
      std::vector<std::byte> in_flight;  // has left the source; empty: not yet
    };
    std::deque<Read> reads;  // issued, not performed
    // Prefill's side: one stream for an attempt.
    std::optional<SequenceId> contractor;
    std::unique_ptr<handoff::PrefillHandoff> prefill;
    // Announcements on their way.
    struct Message {
      handoff::AttemptId attempt;
      std::vector<handoff::AnnouncedPage> pages;
    };
    std::deque<Message> messages;
    // What the test wants of it.
    bool hold_messages = false;
    bool hold_reads = false;     // at the source
    bool hold_landings = false;  // on the way
  };
  // Judges, reserves and opens the handoff. The request stays where it is. `salt` narrows the domain.
  Request& Ask(std::string domain, Tokens prompt, uint32_t output = 8, const std::string& salt = {});
  // A new attempt of a request whose last one failed.
  void AskAgain(Request& request);
  // One turn of both loops, ten milliseconds later.
  void Turn();
  // The prefill worker's part alone; what it announces stays on the way.
  void PrefillTurn();
  // Turns until it is done.
  void Finish(Request& request);
  // The answer of a prompt that is asked alone.
  Answer Alone(const std::string& domain, const Tokens& prompt, uint32_t output = 8);

  // Also what is held: `count` reads, oldest first.
  void PerformReads(Request& request, size_t count);
  void FailRead(Request& request);
  void Deliver(Request& request, const Request::Message& message);
  // All its messages and reads.
  void DeliverAll(Request& request);
  void Cancel(Request& request);
  // The stream breaks: prefill lets go, decode is told.
  void BreakStream(Request& request, const absl::Status& status);
  // Of prefill alone, as a stream that was never told of does not.
  void CloseStream(Request& request);
  // Time passes without a word of the peers, in steps that a punctual loop takes.
  void Wait(std::chrono::milliseconds time);

  engine::Engine& prefill() { return prefill_engine_; }
  engine::Engine& decode() { return decode_engine_; }
  kv::Pool& prefill_pool() { return prefill_pool_; }
  kv::Pool& decode_pool() { return decode_pool_; }
  // Of both workers, seals of arrivals included.
  uint64_t Failed(kv::CheckKind kind) const;
  uint64_t stale_messages() const;
  // Whether nothing is owned, on either side, but by the caches.
  bool AllFree();
  void ScrubEveryTurn() { scrub_ = true; }

 private:
  struct Memory {
    explicit Memory(const kv::Layout& layout, uint64_t pages);
    std::vector<std::byte> bytes;
    std::span<std::byte> aligned;
  };
  void Open(Request& request);
  void OpenContractor(Request& request, Tokens covered, uint32_t first_page);
  handoff::AnnouncedPage Announced(const engine::SealedEvent& page) const;
  void DeliverMessages(Request& request);
  void DecodeTurn();
  void Act(Request& request, const handoff::PrefillActions& actions);
  void Act(Request& request, const handoff::DecodeActions& actions);
  void Perform(Request& request);
  std::span<const std::byte> Source(const handoff::IssueRead& read) const;
  void Complete(Request& request);
  void End(Request& request, const absl::Status& status);
  void ReleaseDecode(Request& request);

  std::shared_ptr<const model::Model> model_;
  const kv::Layout& layout_;
  Memory prefill_memory_, decode_memory_;
  kv::Pool prefill_pool_, decode_pool_;
  std::unique_ptr<model::Executor> executor_;
  engine::Engine prefill_engine_, decode_engine_;
  handoff::TransferWindow window_{size_t{1} << 30};
  std::deque<Request> requests_;
  handoff::Time now_{};
  uint64_t attempts_ = 0;
  uint64_t bad_seals_ = 0;
  bool scrub_ = false;
};

}  // namespace cofferdam::incidents

#endif  // COFFERDAM_TESTS_INCIDENTS_DUO_H_
