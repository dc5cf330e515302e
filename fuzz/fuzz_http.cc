// An HTTP request as a client may send it, in pieces of any size, up to what is judged before its body is answered.
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <optional>
#include <string>

#include "fuzz.h"
#include "gateway/http_parser.h"
#include "gateway/route.h"
#include "gateway/verified_pages.h"

namespace cofferdam::gateway {
namespace {

namespace http = boost::beast::http;

constexpr size_t kHeaderBytes = 1024, kBodyBytes = 2048;
constexpr char kKey[] = "key-of-a-tenant";

struct Outcome {
  bool whole = false;  // head and body
  std::optional<HttpRequest> request;
  size_t consumed = 0;
};

// As a connection reads: first the head, then the body, with what came so far in a buffer. `stride`: bytes that come at once.
Outcome Read(std::string_view bytes, size_t stride) {
  HttpParser parser({.header_bytes = kHeaderBytes, .body_bytes = kBodyBytes});
  Outcome outcome;
  size_t arrived = 0;
  while (!parser.is_done()) {
    boost::system::error_code error;
    parser.eager(parser.is_header_done());
    const bool headed = parser.is_header_done();
    outcome.consumed += parser.put(boost::asio::buffer(bytes.data() + outcome.consumed, arrived - outcome.consumed), error);
    if (!headed && parser.is_header_done()) {
      outcome.request = parser.Head();
      if (!outcome.request.has_value()) return outcome;
      if (!error || error == http::error::need_more) continue;
    }
    if (error && error != http::error::need_more) return outcome;
    if (parser.is_done()) break;
    if (arrived == bytes.size()) return outcome;
    arrived += std::min(stride, bytes.size() - arrived);
  }
  outcome.request->body = parser.get().body();
  outcome.whole = true;
  return outcome;
}

void CheckRequest(const Outcome& outcome) {
  const HttpRequest& request = *outcome.request;
  CD_CHECK(!request.method.empty() && (request.path == "*" || request.path.front() == '/'), "a request has a method and a path");
  CD_CHECK(request.request_id.empty() || IsRequestId(request.request_id), "a request id is well-formed or not taken");
  CD_CHECK(!(request.chunked && request.content_length.has_value()), "the body has one length");
  CD_CHECK(request.body.size() <= kBodyBytes, "a body keeps its limit");
  if (outcome.whole && request.content_length.has_value())
    CD_CHECK(request.body.size() == *request.content_length, "the body has the length that was told");
}

// A client's bytes never become headers of the answer, nor a second answer.
void CheckReply(const HttpReply& reply, const Framing& framing) {
  const std::string bytes = RenderReply(reply, framing);
  http::response_parser<http::string_body> parser;
  if (framing.head_only) parser.skip(true);
  parser.eager(true);
  boost::system::error_code error;
  const size_t consumed = parser.put(boost::asio::buffer(bytes), error);
  CD_CHECK(!error && parser.is_done() && consumed == bytes.size(), "an answer is one whole answer");
  CD_CHECK(parser.get().result_int() == static_cast<unsigned>(reply.status), "the answer has the status that was meant");
  CD_CHECK(framing.head_only || parser.get().body() == reply.body || reply.status == 204, "the answer has the body that was meant");
  const auto& fields = parser.get().base();
  CD_CHECK(fields["X-Request-Id"] == framing.request_id, "the answer names the request");
  CD_CHECK(std::distance(fields.begin(), fields.end()) <= 8, "the answer has the headers that were meant");
}

void CheckStream(const HttpRequest& request, const Framing& framing) {
  if (framing.http_1_0) return;
  const std::string bytes = RenderStreamHead(framing, {}) + RenderChunk(request.body, framing) +
                            RenderChunk(request.path, framing) + RenderLastChunk(framing);
  http::response_parser<http::string_body> parser;
  parser.eager(true);
  boost::system::error_code error;
  parser.put(boost::asio::buffer(bytes), error);
  CD_CHECK(!error && parser.is_done(), "a stream is one whole answer");
  CD_CHECK(parser.get().body() == request.body + request.path, "a stream has the bytes that were sent");
}

void Judge(const HttpRequest& request) {
  static const KeyRing keys({{RecordOfPlainKey(kKey)}});
  const Route route = FindRoute(request.path);
  std::shared_ptr<const Grant> grant;
  const std::optional<HttpReply> refusal = CheckHead({.keys = keys, .max_body_bytes = kBodyBytes}, route, request, &grant);
  const Framing framing{.keep_alive = request.keep_alive,
                        .head_only = request.method == "HEAD",
                        .http_1_0 = request.http_1_0,
                        .request_id = request.request_id};
  if (refusal.has_value()) {
    const bool is_clients = refusal->status >= 400 && refusal->status < 500;
    CD_CHECK(refusal->status == 204 || is_clients || (refusal->status == 501 && route.id == RouteId::kUnsupported),
             "a refusal is the client's fault, or of a path that is not served");
    return CheckReply(*refusal, framing);
  }
  CD_CHECK(route.id != RouteId::kNone, "what is answered has a route");
  CD_CHECK(route.needs_key == (grant != nullptr), "what needs a key has one");
  CD_CHECK(grant == nullptr || grant == keys.Find(std::string("Bearer ") + kKey), "who has no key gets no grant");
  CD_CHECK(!route.post || request.chunked || request.content_length.has_value(), "a body says how it ends");
  if (const std::optional<ApiError> wrong = JudgeVerifyHeader(request.verify)) CheckReply(ErrorReply(*wrong), framing);
  CheckStream(request, framing);
}

}  // namespace
}  // namespace cofferdam::gateway

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cofferdam::gateway;
  cofferdam::fuzz::Input input(data, size);
  const size_t stride = size_t{1} + input.Byte() % 32;
  const std::string_view bytes = input.Rest();
  const Outcome at_once = Read(bytes, bytes.size()), in_pieces = Read(bytes, stride);
  CD_CHECK(at_once.whole == in_pieces.whole, "how bytes are cut does not decide what is a request");
  if (at_once.request.has_value()) CheckRequest(at_once);
  if (!at_once.whole) return 0;
  CD_CHECK(at_once.consumed == in_pieces.consumed && at_once.consumed <= bytes.size(), "a request ends where it ends");
  CD_CHECK(at_once.request->path == in_pieces.request->path && at_once.request->body == in_pieces.request->body &&
               at_once.request->authorization == in_pieces.request->authorization,
           "how bytes are cut does not decide what a request says");
  Judge(*at_once.request);
  return 0;
}
