// HTTP requests and answers as values, and answers as bytes.
#ifndef COFFERDAM_GATEWAY_HTTP_MESSAGE_H_
#define COFFERDAM_GATEWAY_HTTP_MESSAGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gateway/api_error.h"

namespace cofferdam::gateway {

// The head of a request, as far as it matters, and later its body.
struct HttpRequest {
  std::string method;
  std::string path;  // decoded, without the query
  std::string authorization;
  std::string content_type;
  std::string content_encoding;
  std::string expect;
  std::string request_id;             // the client's X-Request-Id when well-formed, else empty
  std::optional<std::string> verify;  // of every Cofferdam-Verify line, joined by commas; none without such a line
  bool http_1_0 = false;
  bool keep_alive = true;
  bool chunked = false;
  std::optional<uint64_t> content_length;
  std::string body;

  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
};

HttpReply JsonReply(std::string body);
HttpReply ErrorReply(const ApiError& error);

// Decodes %XX and cuts the query off. None for a target that is not a path or has broken escapes.
std::optional<std::string> PathOf(std::string_view target);
// 1 to 128 characters of letters, digits, '-', '_', '.' and ':'.
bool IsRequestId(std::string_view text);
// "req-" and 16 random digits, for a client that named its request in no way.
std::string NewRequestId();

// How the answer to `request` is to be framed.
struct Framing {
  bool keep_alive = true;
  bool head_only = false;  // HEAD: the headers of an answer without its body
  bool http_1_0 = false;
  std::string request_id;
};
std::string RenderReply(const HttpReply& reply, const Framing& framing);

// The head of an event stream. With HTTP/1.0 the stream ends with the connection, else it is chunked.
std::string RenderStreamHead(const Framing& framing, const HttpHeaders& headers);
std::string RenderChunk(std::string_view data, const Framing& framing);
std::string RenderLastChunk(const Framing& framing);

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_HTTP_MESSAGE_H_
