// Reads one HTTP request from bytes, within limits.
#ifndef COFFERDAM_GATEWAY_HTTP_PARSER_H_
#define COFFERDAM_GATEWAY_HTTP_PARSER_H_

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <optional>

#include "gateway/http_message.h"

namespace cofferdam::gateway {

// Not thread-safe; one for a request.
class HttpParser : public boost::beast::http::request_parser<boost::beast::http::string_body> {
 public:
  struct Limits {
    size_t header_bytes = 0;
    size_t body_bytes = 0;
  };
  explicit HttpParser(const Limits& limits);

  // The request without its body; none when the target is not a path. REQUIRES: is_header_done().
  std::optional<HttpRequest> Head() const;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_HTTP_PARSER_H_
