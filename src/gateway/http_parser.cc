#include "gateway/http_parser.h"

#include <boost/beast/http/rfc7230.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "gateway/verified_pages.h"

namespace cofferdam::gateway {
namespace {

namespace http = boost::beast::http;

std::string Text(boost::beast::string_view view) { return std::string(view.data(), view.size()); }

}  // namespace

HttpParser::HttpParser(const Limits& limits) {
  header_limit(static_cast<uint32_t>(limits.header_bytes));
  body_limit(limits.body_bytes);
}

std::optional<HttpRequest> HttpParser::Head() const {
  const auto& message = get();
  const std::optional<std::string> path = PathOf(Text(message.target()));
  if (!path.has_value()) return std::nullopt;
  HttpRequest request;
  request.method = Text(message.method_string());
  request.path = *path;
  request.authorization = Text(message[http::field::authorization]);
  request.content_type = Text(message[http::field::content_type]);
  request.content_encoding = Text(message[http::field::content_encoding]);
  request.expect = Text(message[http::field::expect]);
  const std::string id = Text(message["X-Request-Id"]);
  if (IsRequestId(id)) request.request_id = id;
  const auto [first, last] = message.equal_range(kVerifyHeader);
  for (auto line = first; line != last; ++line) {
    request.verify = request.verify.has_value() ? absl::StrCat(*request.verify, ",", Text(line->value())) : Text(line->value());
  }
  request.http_1_0 = message.version() < 11;
  request.keep_alive = message.keep_alive();
  request.chunked = chunked();
  if (const auto length = content_length(); length.has_value()) request.content_length = *length;
  return request;
}

}  // namespace cofferdam::gateway
