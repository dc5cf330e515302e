#include "gateway/connection.h"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gateway/completion.h"
#include "gateway/http_parser.h"
#include "gateway/routes.h"

namespace cofferdam::gateway {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

bool IsCompletion(const Route& route) { return route.id == RouteId::kChat || route.id == RouteId::kCompletions; }

}  // namespace

Connection::Connection(Service& service, asio::ip::tcp::socket socket)
    : service_(service),
      client_(std::make_shared<Client>(
          std::move(socket),
          Client::Limits{service.options.max_header_bytes + service.options.max_pipelined_bytes, service.options.write_timeout})) {
  ++service_.metrics.connections;
  ++service_.metrics.connections_total;
}

Connection::~Connection() { --service_.metrics.connections; }

void Connection::RequestStop(bool force) {
  asio::post(client_->strand(), [self = shared_from_this(), force] {
    self->stop_ = true;
    if (force || self->idle_) self->client_->Close();
  });
}

asio::awaitable<void> Connection::Serve(std::shared_ptr<Connection> self) {
  try {
    co_await self->ServeAll();
  } catch (const std::exception& problem) {
    log::error("a connection ended with an exception: {}", problem.what());
  }
  self->client_->Disarm();
  self->client_->Close();
}

asio::awaitable<void> Connection::Refuse(std::shared_ptr<Connection> self) {
  try {
    co_await self->ReplyAndClose(ErrorReply(HttpError(503, "Too many connections. Try again later.", "too_many_connections")),
                                 "other");
  } catch (const std::exception& problem) {
    log::error("a refusal ended with an exception: {}", problem.what());
  }
  self->client_->Disarm();
  self->client_->Close();
}

asio::awaitable<void> Connection::ServeAll() {
  bool more = true;
  while (more && !stop_) {
    more = co_await ServeOne();
    first_ = false;
  }
  // An orderly end: FIN after the last answer, so that it is not lost to a reset.
  if (client_->socket().is_open() && !client_->gone()) co_await client_->Linger();
}

asio::awaitable<bool> Connection::AwaitRequest() {
  if (client_->buffer().size() > 0) co_return true;
  idle_ = true;
  error_code error;
  client_->Arm(first_ ? service_.options.header_timeout : service_.options.idle_timeout);
  co_await client_->socket().async_wait(asio::ip::tcp::socket::wait_read, asio::redirect_error(asio::use_awaitable, error));
  client_->Disarm();
  idle_ = false;
  co_return !error && !stop_;
}

asio::awaitable<bool> Connection::ReadHead(HttpParser& parser) {
  error_code error;
  client_->Arm(service_.options.header_timeout);
  co_await http::async_read_header(client_->socket(), client_->buffer(), parser, asio::redirect_error(asio::use_awaitable, error));
  client_->Disarm();
  if (!error) co_return true;
  if (client_->timed_out()) {
    ++service_.metrics.timeouts_total;
    co_await ReplyAndClose(ErrorReply(HttpError(408, "The request's headers took too long.", "timeout")), "other");
  } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    const size_t limit = service_.options.max_header_bytes;
    co_await ReplyAndClose(
        ErrorReply(HttpError(431, absl::StrCat("The headers are limited to ", limit, " bytes."), "headers_too_large")), "other");
  } else if (error == http::error::body_limit) {
    const size_t limit = service_.options.max_body_bytes;
    co_await ReplyAndClose(
        ErrorReply(HttpError(413, absl::StrCat("The request body is limited to ", limit, " bytes."), "body_too_large")), "other");
  } else if (error.category() == make_error_code(http::error::bad_method).category() && error != http::error::end_of_stream &&
             error != http::error::partial_message) {
    co_await ReplyAndClose(ErrorReply(HttpError(400, "The request is not valid HTTP.", "bad_http")), "other");
  }
  co_return false;
}

asio::awaitable<bool> Connection::ReadBody(HttpParser& parser, const Route& route, const HttpRequest& request) {
  if (!request.expect.empty() && !request.http_1_0 && !parser.is_done()) {
    const bool sent = co_await client_->Write("HTTP/1.1 100 Continue\r\n\r\n");
    if (!sent) co_return false;
  }
  error_code error;
  client_->Arm(service_.options.body_timeout);
  co_await http::async_read(client_->socket(), client_->buffer(), parser, asio::redirect_error(asio::use_awaitable, error));
  client_->Disarm();
  if (!error) co_return true;
  if (client_->timed_out()) {
    ++service_.metrics.timeouts_total;
    co_await ReplyAndClose(ErrorReply(HttpError(408, "The request's body took too long.", "timeout")), route.name,
                           request.request_id);
  } else if (error == http::error::body_limit) {
    const size_t limit = service_.options.max_body_bytes;
    co_await ReplyAndClose(
        ErrorReply(HttpError(413, absl::StrCat("The request body is limited to ", limit, " bytes."), "body_too_large")), route.name,
        request.request_id);
  } else if (error.category() == make_error_code(http::error::bad_method).category() && error != http::error::partial_message) {
    co_await ReplyAndClose(ErrorReply(HttpError(400, "The request body is not valid HTTP.", "bad_http")), route.name,
                           request.request_id);
  }
  co_return false;
}

asio::awaitable<void> Connection::ReplyAndClose(HttpReply reply, const std::string& route, std::string request_id) {
  Framing framing;
  framing.keep_alive = false;
  framing.request_id = request_id.empty() ? NewRequestId() : std::move(request_id);
  service_.metrics.CountRequest(route, reply.status);
  const std::string bytes = RenderReply(reply, framing);
  co_await client_->Write(bytes);
}

Framing Connection::FramingOf(const HttpRequest& request) const {
  Framing framing;
  framing.keep_alive = request.keep_alive && !stop_;
  framing.head_only = request.method == "HEAD";
  framing.http_1_0 = request.http_1_0;
  framing.request_id = request.request_id;
  return framing;
}

asio::awaitable<bool> Connection::ServeOne() {
  const bool coming = co_await AwaitRequest();
  if (!coming) co_return false;
  const auto parser = std::make_unique<HttpParser>(
      HttpParser::Limits{.header_bytes = service_.options.max_header_bytes, .body_bytes = service_.options.max_body_bytes});
  const bool headed = co_await ReadHead(*parser);
  if (!headed) co_return false;
  std::optional<HttpRequest> request = parser->Head();
  if (!request.has_value()) {
    co_await ReplyAndClose(ErrorReply(HttpError(400, "The request's target is not a path.", "bad_http")), "other");
    co_return false;
  }
  const Route route = FindRoute(request->path);
  std::shared_ptr<const Grant> grant;
  std::optional<HttpReply> refusal =
      CheckHead({.keys = service_.keys, .max_body_bytes = service_.options.max_body_bytes}, route, *request, &grant);
  // A chunked body does not say how long it will be.
  const uint64_t expected = request->chunked ? service_.options.max_body_bytes : request->content_length.value_or(0);
  Quota::Share share = service_.body_bytes.Take(expected);
  if (!refusal.has_value() && !share) {
    refusal = ErrorReply(HttpError(503, "Too many request bodies are being read. Try again later.", "busy"));
  }
  // That of a completion that is not refused here is the id of its answer, which stands in the logs.
  if (request->request_id.empty() && (refusal.has_value() || !IsCompletion(route))) request->request_id = NewRequestId();
  if (refusal.has_value() && request->has_body()) {
    // The body would be taken for the next request.
    co_await ReplyAndClose(*std::move(refusal), route.name, request->request_id);
    co_return false;
  }
  if (refusal.has_value()) {
    const Framing framing = FramingOf(*request);
    service_.metrics.CountRequest(route.name, refusal->status);
    const std::string bytes = RenderReply(*refusal, framing);
    const bool sent = co_await client_->Write(bytes);
    co_return sent&& framing.keep_alive;
  }
  const bool whole = co_await ReadBody(*parser, route, *request);
  if (!whole) co_return false;
  request->body = std::move(parser->get().body());
  co_return co_await Dispatch(*std::move(request), route, std::move(grant), std::move(share));
}

asio::awaitable<bool> Connection::Dispatch(HttpRequest request, const Route& route, std::shared_ptr<const Grant> grant,
                                           Quota::Share share) {
  const Framing framing = FramingOf(request);
  if (IsCompletion(route)) {
    Completion::Head head;
    head.grant = std::move(grant);
    head.chat = route.id == RouteId::kChat;
    head.verify = std::move(request.verify);
    Completion completion(service_, *client_, framing, std::move(head));
    const Completion::Outcome outcome = co_await completion.Run(std::move(request.body), std::move(share));
    service_.metrics.CountRequest(route.name, outcome.status);
    co_return outcome.keep_alive;
  }
  const HttpReply reply = co_await AnswerSoon(route, request, grant.get());
  service_.metrics.CountRequest(route.name, reply.status);
  const std::string bytes = RenderReply(reply, framing);
  const bool sent = co_await client_->Write(bytes);
  co_return sent&& framing.keep_alive;
}

asio::awaitable<HttpReply> Connection::AnswerSoon(const Route& route, const HttpRequest& request, const Grant* grant) {
  const bool elsewhere = request.body.size() > kInlineBodyBytes;
  if (elsewhere) co_await asio::post(asio::bind_executor(service_.text_pool.get_executor(), asio::use_awaitable));
  HttpReply reply;
  try {
    reply = Answer(service_, route, request, grant);
  } catch (const std::exception&) {  // out of memory is one request's misfortune
    reply = ErrorReply(HttpError(500, "The request could not be answered.", "internal_error"));
  }
  if (elsewhere) co_await asio::post(asio::bind_executor(client_->strand(), asio::use_awaitable));
  co_return reply;
}

}  // namespace cofferdam::gateway
