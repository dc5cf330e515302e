// A blocking HTTP/1.1 client over a raw socket, for tests that look at bytes.
#ifndef COFFERDAM_TESTS_SUPPORT_HTTP_CLIENT_H_
#define COFFERDAM_TESTS_SUPPORT_HTTP_CLIENT_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cofferdam::http {

using Json = nlohmann::json;

struct Response {
  int status = 0;                              // 0: the connection ended first
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool complete = false;
  Json json() const { return Json::parse(body, nullptr, false); }
};

// A blocking client with a time limit on everything.
class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer = 0);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  bool connected() const { return fd_ >= 0; }

  bool Send(const std::string& bytes);
  void HalfClose();
  void Reset();
  // Reads one answer, of Content-Length or chunked.
  Response Read(bool head_only = false);
  // Reads until `text` has come, and returns everything so far.
  std::string ReadUntil(const std::string& text);
  // Whether the server has closed, after dropping what still comes.
  bool AwaitEnd();

 private:
  bool Fill();
  std::string buffer_;
  int fd_ = -1;
};

std::string Post(const std::string& path, const std::string& body, const std::string& headers = "");
// The "data:" lines of a stream.
std::vector<std::string> EventsOf(const std::string& body);
// The text of all chunks of a stream.
std::string TextOf(const std::string& body);
// The same for each choice, by its index.
std::vector<std::string> TextsOf(const std::string& body);
std::string FinishReasonOf(const std::string& body);

}  // namespace cofferdam::http

#endif  // COFFERDAM_TESTS_SUPPORT_HTTP_CLIENT_H_
