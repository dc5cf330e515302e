// Every message between gateway and workers, as bytes: what is parsed is judged by those who take it, and written again.
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "fuzz.h"
#include "gateway/api_error.h"
#include "gateway/metrics.h"
#include "gateway/verified_pages.h"
#include "handoff/prefill_handoff.h"
#include "handoff/testing.h"
#include "model/sampler.h"
#include "worker/wire.h"

namespace cofferdam {
namespace {

constexpr uint32_t kVocabulary = 64;

template <typename Message>
bool Parse(std::string_view bytes, Message& message) {
  return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

void CheckIds(const std::string& request_id, const std::string& domain, const std::string& salt, uint32_t priority) {
  CD_CHECK(request_id.size() <= worker::kMaxIdBytes && domain.size() <= worker::kMaxIdBytes && salt.size() <= worker::kMaxIdBytes,
           "names keep their limit");
  CD_CHECK(priority <= worker::kMaxPriority, "a priority keeps its limit");
}

void OnGenerate(std::string_view bytes) {
  v1::GenerateRequest wire;
  if (!Parse(bytes, wire)) return;
  const auto spec = worker::FromWire(wire);
  if (!spec.ok()) return;
  CheckIds(wire.request_id(), wire.domain(), wire.cache_salt(), wire.priority());
  CD_CHECK(spec->tokens.size() == static_cast<size_t>(wire.tokens_size()), "no token is lost");
  CD_CHECK(spec->stop_tokens.size() <= 1024 && spec->sampling.has_value(), "a request to decode samples");
  auto sampler = model::Sampler::Create(*spec->sampling, kVocabulary);
  if (!sampler.ok()) return;
  for (const TokenId token : spec->tokens) sampler->Accept(token);
  std::vector<float> logits(kVocabulary);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7) - 3;
  const TokenId drawn = sampler->Sample(logits, spec->resumed_tokens, nullptr);
  CD_CHECK(drawn >= 0 && drawn < static_cast<TokenId>(kVocabulary), "what is drawn is of the vocabulary");
  CD_CHECK(drawn == sampler->Sample(logits, spec->resumed_tokens, nullptr), "a draw is a function of seed and position");
}

void OnPrefillRequest(std::string_view bytes) {
  v1::PrefillRequest wire;
  if (!Parse(bytes, wire)) return;
  const v1::Open& open = wire.open();
  const auto spec = worker::FromWire(open);
  if (spec.ok()) {
    CheckIds(open.request_id(), open.domain(), open.cache_salt(), open.priority());
    CD_CHECK(spec->tokens.size() == static_cast<size_t>(open.tokens_size()) && !spec->sampling.has_value(),
             "a run of prefill computes these tokens and samples none");
  }
  handoff::PrefillHandoff handoff({.pages = 3,
                                   .first_page = open.first_page() % 3,
                                   .silence_limit = std::chrono::seconds(1),
                                   .progress_limit = std::chrono::seconds(1)},
                                  {});
  handoff::PrefillActions actions;
  handoff.OnReserved(actions);
  handoff.OnPeerHeartbeat(wire.covered_pages(), {});
  CD_CHECK(handoff.wrong_messages() == (wire.covered_pages() > open.first_page() % 3 ? 1 : 0),
           "nobody covers pages that were not announced");
  handoff.OnStreamClosed(actions);
  CD_CHECK(handoff::testing::Count<handoff::Unpin>(actions) == 1, "what is pinned is let go once");
}

// Messages of a run, each behind its length, to the machine that reads pages.
void OnPrefillEvents(fuzz::Input input) {
  using namespace handoff::testing;
  constexpr uint32_t kPages = 3;
  handoff::TransferWindow window(2 * kPageBytes);
  handoff::DecodeHandoff handoff({.attempt = kAttempt,
                                  .layout_id = LayoutId(),
                                  .identities = Identities(kPages),
                                  .covered_tokens = uint64_t{kPages} * kPageTokens - 5,
                                  .first_page = 1,
                                  .page_tokens = kPageTokens,
                                  .page_bytes = kPageBytes,
                                  .silence_limit = std::chrono::seconds(1),
                                  .stall_limit = std::chrono::seconds(1)},
                                 window, {});
  std::set<uint32_t> read;
  while (!input.empty()) {
    v1::PrefillEvent event;
    if (!Parse(input.Text(input.Number(2)), event)) return;
    const bool stale = worker::FromWire(event.attempt()) != kAttempt;
    const uint64_t stale_before = handoff.stale_messages();
    handoff::DecodeActions actions;
    worker::Deliver(event, {}, handoff, actions);
    const bool counted = handoff.stale_messages() == stale_before + 1;
    if (stale) CD_CHECK(actions.empty() && counted == (event.event_case() != 0), "I8: a message of another attempt has no effect");
    for (const handoff::DecodeAction& action : actions) {
      const auto* issued = std::get_if<handoff::IssueRead>(&action);
      if (issued == nullptr) continue;
      const uint32_t ordinal = issued->page.ordinal;
      CD_CHECK(ordinal >= 1 && ordinal < kPages && read.insert(ordinal).second, "I4: a page that is wanted is read once");
      CD_CHECK(issued->page.seal.identity == Identity(ordinal) && issued->page.seal.layout_id == LayoutId(),
               "I4: what is read was announced with the identity of these tokens");
    }
    CD_CHECK(handoff.reads_out() == read.size() && window.in_flight_bytes() <= 2 * kPageBytes, "the window keeps its limit");
  }
  for (const uint32_t ordinal : read) {
    handoff::DecodeActions actions;
    handoff.OnReadFailed(ordinal, absl::UnavailableError("the end of the test"), actions);
  }
  CD_CHECK(window.in_flight_bytes() == 0, "every read gives its bytes back");
}

void OnSealedPage(std::string_view bytes) {
  v1::SealedPage wire;
  if (!Parse(bytes, wire)) return;
  const auto page = worker::FromWire(wire);
  if (!page.ok()) return;
  v1::SealedPage again;
  worker::ToWire(*page, &again);
  const auto second = worker::FromWire(again);
  CD_CHECK(second.ok() && second->ordinal == page->ordinal && second->seal == page->seal, "a page is the same when it is sent on");
  CD_CHECK(second->source.region == page->source.region && second->source.offset == page->source.offset &&
               second->source.generation == page->source.generation,
           "its place is the same, too");
}

void OnGenerateEvent(std::string_view bytes) {
  v1::GenerateEvent wire;
  if (!Parse(bytes, wire)) return;
  gateway::VerifiedPages pages, twice;
  pages.AddPages(wire.accepted().pages_verified());
  pages.AddChecks(wire.finished());
  twice.Add(pages);
  CD_CHECK(twice.Text() == pages.Text(), "one choice alone has the counts of its request");
  twice.Add(pages);
  CD_CHECK(twice.Text().size() < 256, "a header is short whatever is counted");
  for (const char c : twice.Text()) CD_CHECK(c >= ' ' && c < 127, "a header is a line");
}

// A worker's words become lines of /metrics, and no others.
void OnWorkerInfo(std::string_view bytes) {
  gateway::WorkerMetrics worker{.role = "decode", .address = "unix:/tmp/a", .up = true, .routable = true, .info = {}};
  if (!Parse(bytes, worker.info)) return;
  const std::string text = gateway::Metrics().Render({worker});
  CD_CHECK(text.ends_with('\n'), "a line has an end");
  size_t start = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; start = end + 1, end = text.find('\n', start)) {
    const std::string_view line = std::string_view(text).substr(start, end - start);
    CD_CHECK(line.starts_with("cofferdam_") || line.starts_with("# HELP cofferdam_") || line.starts_with("# TYPE cofferdam_"),
             "every line is a sample of ours, or about one");
  }
}

void OnFind(std::string_view bytes) {
  v1::FindRequest wire;
  if (!Parse(bytes, wire)) return;
  for (const std::string& identity : wire.identities()) {
    const auto digest = worker::DigestFromWire(identity);
    CD_CHECK(digest.ok() == (identity.size() == 16), "a digest has 16 bytes");
    if (digest.ok()) CD_CHECK(worker::ToWire(*digest) == identity, "a digest is the same when it is sent on");
  }
}

// The facts of a refusal, and what a client is told of them.
void OnStatus(fuzz::Input input) {
  const auto code = static_cast<grpc::StatusCode>(input.Byte() % 18);
  const std::string message(input.Text(input.Byte()));
  const std::string_view details = input.Rest();
  const auto facts = ParseFacts(details);
  if (facts.has_value()) CD_CHECK(ParseFacts(SerializeFacts(*facts)) == facts, "facts are the same when they are sent on");
  const gateway::ApiError error = gateway::FromGrpc(grpc::Status(code, message, std::string(details)));
  CD_CHECK(error.status >= 400 && error.status < 600 && !error.message.empty() && !gateway::ErrorJson(error).empty(),
           "a failure is an answer");
}

}  // namespace
}  // namespace cofferdam

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cofferdam;
  fuzz::Input input(data, size);
  switch (input.Byte() % 8) {
    case 0:
      OnGenerate(input.Rest());
      break;
    case 1:
      OnPrefillRequest(input.Rest());
      break;
    case 2:
      OnPrefillEvents(input);
      break;
    case 3:
      OnSealedPage(input.Rest());
      break;
    case 4:
      OnGenerateEvent(input.Rest());
      break;
    case 5:
      OnWorkerInfo(input.Rest());
      break;
    case 6:
      OnFind(input.Rest());
      break;
    default:
      OnStatus(input);
  }
  return 0;
}
