// One attempt at one request, in the schedules of random_world.h: both machines, their stream, and their drivers.
#ifndef COFFERDAM_HANDOFF_RANDOM_TRANSFER_H_
#define COFFERDAM_HANDOFF_RANDOM_TRANSFER_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "handoff/decode_handoff.h"
#include "handoff/prefill_handoff.h"
#include "handoff/random_workers.h"

namespace cofferdam::handoff::testing {

// A prompt, without its last token, and whose it is.
struct Request {
  kv::Key domain_key{};
  std::vector<TokenId> tokens;
  uint32_t first_page = 0;  // those before it are decode's already
};

// What was announced in one message.
struct Announcement {
  AttemptId attempt;
  std::vector<AnnouncedPage> pages;
};

// The drivers do what PageFetcher and PageServer of src/worker do. Every event may come at any time. One thread.
class Transfer {
 public:
  // `own`: decode's pages from the first one wanted. Everything else is not owned and outlives the transfer.
  Transfer(Setting& setting, Memory& sink, Source& source, const AttemptId& attempt, const Request& request,
           std::vector<kv::PageHandle> own);

  // The prefill worker: asks for pages; gives the step that begins something to do; hears what that step wrote.
  void AskForPages();
  void BeginStep(std::vector<Source::Write>& step);
  void Write(uint32_t ordinal, std::span<std::byte> payload) const { Compute(identities_[ordinal], TokensOf(ordinal), payload); }
  void EndStep(uint32_t pages);
  // The network.
  void DeliverToDecode();
  void DeliverLate(const Announcement& message);
  void DeliverToPrefill();
  void Heartbeats();
  void BreakStream();
  // The fabric: one read goes on or ends. True when bytes of the window came back.
  bool AdvanceRead(const std::optional<absl::Status>& forced);
  // Clocks and people.
  void OfferWindow();
  void Tick();
  void Disturb();
  void Cancel();
  // A sequence that ran with these pages ends: they are as they were adopted.
  void Finish();

  // Whatever happened: the streams end, the reads end, and everything is let go.
  void Drain();
  void CheckDrained();

  bool over() const { return (decode_.complete() || decode_.released()) && prefill_.closed() && reads_.empty() && own_.empty(); }
  bool to_be_retried() const { return retry_elsewhere_ && decode_.released(); }
  const Request& request() const { return request_; }
  const Source& source() const { return source_; }
  std::optional<Announcement> last_message() const { return last_message_; }
  size_t reads_out() const { return reads_.size(); }

 private:
  struct Read {
    IssueRead asked;
    PageId at;
    Generation tenure;
    std::shared_ptr<bool> closed;
    size_t copied = 0;
    std::optional<kv::Arrival> arrival;
  };

  void Perform(const PrefillActions& actions);
  void Perform(const DecodeActions& actions);
  void PerformOne(const DecodeAction& action, DecodeActions& after);
  void OnIssueRead(const IssueRead& read);
  bool OnAdopt(const Adopt& adopt);
  void OnComplete();
  void OnRelease();
  void CheckAlways();
  // False when the read can not be made at all.
  bool Copy(Read& read, size_t up_to);
  void Judge(Read& read);
  void EndRead(uint32_t ordinal, const std::optional<absl::Status>& failed);
  void Corrupt(AnnouncedPage& page);
  AnnouncedPage AnyPage();
  uint32_t TokensOf(uint32_t ordinal) const;
  kv::PageHandle& Own(uint32_t ordinal) { return own_.at(ordinal - request_.first_page); }

  Setting& setting_;
  Memory& sink_;
  Source& source_;
  const AttemptId attempt_;
  const Request request_;
  const std::vector<kv::Digest128> identities_;
  const uint32_t pages_;
  DecodeHandoff decode_;
  PrefillHandoff prefill_;
  const std::shared_ptr<bool> reader_closed_;
  std::vector<kv::PageHandle> own_, held_;  // decode's, prefill's
  std::deque<Announcement> to_decode_;
  std::optional<Announcement> last_message_;
  std::optional<absl::Status> stream_end_;
  std::map<uint32_t, Read> reads_;
  std::set<uint32_t> read_once_, adopted_;
  std::vector<AnnouncedPage> sealed_;
  uint32_t computing_ = 0, announced_ = 0;
  bool stream_open_ = true, decode_told_ = false, answered_ = false, gone_ = false, released_ = false, retry_elsewhere_ = false;
  int terminals_ = 0, unpinned_ = 0, prefill_ends_ = 0, peer_closed_ = 0;
};

}  // namespace cofferdam::handoff::testing

#endif  // COFFERDAM_HANDOFF_RANDOM_TRANSFER_H_
