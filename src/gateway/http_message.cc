#include "gateway/http_message.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gateway/random_hex.h"

namespace cofferdam::gateway {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;

std::string_view Phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Unknown";
  }
}

std::string_view Version(const Framing& framing) { return framing.http_1_0 ? "HTTP/1.0" : "HTTP/1.1"; }

std::string CommonHeaders(const Framing& framing, bool keep_alive) {
  std::string out = absl::StrCat("Server: cofferdam\r\nConnection: ", keep_alive ? "keep-alive" : "close", "\r\n");
  if (!framing.request_id.empty()) absl::StrAppend(&out, "X-Request-Id: ", framing.request_id, "\r\n");
  return out;
}

void AppendHeaders(const HttpHeaders& headers, std::string& out) {
  for (const auto& [name, value] : headers) absl::StrAppend(&out, name, ": ", value, "\r\n");
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

HttpReply JsonReply(std::string body) {
  HttpReply reply;
  reply.body = std::move(body);
  return reply;
}

HttpReply ErrorReply(const ApiError& error) {
  HttpReply reply = JsonReply(ErrorJson(error));
  reply.status = error.status;
  if (error.retry_after_s > 0) reply.headers.emplace_back("Retry-After", absl::StrCat(error.retry_after_s));
  if (error.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

std::optional<std::string> PathOf(std::string_view target) {
  target = target.substr(0, target.find('?'));
  if (target == "*") return "*";
  if (target.empty() || target.front() != '/') return std::nullopt;
  std::string path;
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      path += target[i];
      continue;
    }
    const int high = i + 2 < target.size() ? HexDigit(target[i + 1]) : -1;
    const int low = i + 2 < target.size() ? HexDigit(target[i + 2]) : -1;
    if (high < 0 || low < 0) return std::nullopt;
    path += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return path;
}

bool IsRequestId(std::string_view text) {
  return !text.empty() && text.size() <= kMaxRequestIdBytes && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' || c == ':';
  });
}

std::string NewRequestId() { return "req-" + RandomHex(8); }

std::string RenderReply(const HttpReply& reply, const Framing& framing) {
  std::string out = absl::StrCat(std::string(Version(framing)), " ", reply.status, " ", std::string(Phrase(reply.status)), "\r\n",
                                 CommonHeaders(framing, framing.keep_alive));
  if (reply.status != 204) {
    absl::StrAppend(&out, "Content-Type: ", reply.content_type, "\r\nContent-Length: ", reply.body.size(), "\r\n");
  }
  AppendHeaders(reply.headers, out);
  out += "\r\n";
  if (!framing.head_only && reply.status != 204) out += reply.body;
  return out;
}

std::string RenderStreamHead(const Framing& framing, const HttpHeaders& headers) {
  const bool chunked = !framing.http_1_0;
  std::string out =
      absl::StrCat(std::string(Version(framing)), " 200 OK\r\n", CommonHeaders(framing, framing.keep_alive && chunked),
                   "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n",
                   chunked ? "Transfer-Encoding: chunked\r\n" : "");
  AppendHeaders(headers, out);
  out += "\r\n";
  return out;
}

std::string RenderChunk(std::string_view data, const Framing& framing) {
  if (framing.http_1_0 || data.empty()) return std::string(data);
  return absl::StrCat(absl::Hex(data.size()), "\r\n", std::string(data), "\r\n");
}

std::string RenderLastChunk(const Framing& framing) { return framing.http_1_0 ? "" : "0\r\n\r\n"; }

}  // namespace cofferdam::gateway
