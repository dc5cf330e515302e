#include "support/http_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "support/patience.h"

namespace cofferdam::http {

RawClient::RawClient(uint16_t port, int receive_buffer) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  timeval limit{15 * kPatience, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(fd_);
    fd_ = -1;
  }
}

RawClient::~RawClient() {
  if (fd_ >= 0) close(fd_);
}

bool RawClient::Send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

void RawClient::HalfClose() { shutdown(fd_, SHUT_WR); }

void RawClient::Reset() {
  const linger now{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(fd_);
  fd_ = -1;
}

bool RawClient::Fill() {
  char block[65536];
  const ssize_t count = recv(fd_, block, sizeof block, 0);
  if (count <= 0) return false;
  buffer_.append(block, static_cast<size_t>(count));
  return true;
}

std::string RawClient::ReadUntil(const std::string& text) {
  while (buffer_.find(text) == std::string::npos && Fill()) {
  }
  return buffer_;
}

bool RawClient::AwaitEnd() {
  char block[65536];
  ssize_t count = 0;
  while ((count = recv(fd_, block, sizeof block, 0)) > 0) {
  }
  return count == 0 || errno == ECONNRESET;
}

Response RawClient::Read(bool head_only) {
  Response response;
  while (buffer_.find("\r\n\r\n") == std::string::npos) {
    if (!Fill()) return response;
  }
  const size_t end = buffer_.find("\r\n\r\n");
  std::string head = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  response.status = std::atoi(head.c_str() + 9);
  for (size_t at = head.find("\r\n") + 2; at < head.size();) {
    const size_t line_end = head.find("\r\n", at);
    const size_t colon = head.find(':', at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    response.headers[name] = head.substr(colon + 2, line_end - colon - 2);
    at = line_end + 2;
  }
  response.complete = head_only || response.status == 204 || response.status == 100;
  if (response.complete) return response;
  if (response.headers.contains("content-length")) {
    const size_t length = std::stoul(response.headers["content-length"]);
    while (buffer_.size() < length && Fill()) {
    }
    response.complete = buffer_.size() >= length;
    response.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
    return response;
  }
  if (!response.headers.contains("transfer-encoding")) {
    while (Fill()) {
    }
    response.body = std::exchange(buffer_, {});
    response.complete = true;
    return response;
  }
  for (;;) {
    while (buffer_.find("\r\n") == std::string::npos) {
      if (!Fill()) return response;
    }
    const size_t line = buffer_.find("\r\n");
    const size_t length = std::stoul(buffer_.substr(0, line), nullptr, 16);
    while (buffer_.size() < line + 2 + length + 2) {
      if (!Fill()) return response;
    }
    response.body += buffer_.substr(line + 2, length);
    buffer_.erase(0, line + 2 + length + 2);
    if (length == 0) break;
  }
  response.complete = true;
  return response;
}

std::string Post(const std::string& path, const std::string& body, const std::string& headers) {
  return "POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::vector<std::string> EventsOf(const std::string& body) {
  std::vector<std::string> events;
  for (size_t at = 0; at < body.size();) {
    size_t end = body.find("\n\n", at);
    if (end == std::string::npos) end = body.size();
    const std::string event = body.substr(at, end - at);
    EXPECT_EQ(event.substr(0, 6), "data: ");
    events.push_back(event.substr(6));
    at = end + 2;
  }
  return events;
}

std::string TextOf(const std::string& body) {
  std::string text;
  for (const std::string& event : EventsOf(body)) {
    const Json chunk = Json::parse(event, nullptr, false);
    if (chunk.is_discarded() || !chunk.contains("choices") || chunk["choices"].empty()) continue;
    const Json& choice = chunk["choices"][0];
    if (choice.contains("text")) text += choice["text"].get<std::string>();
    if (choice.contains("delta")) text += choice["delta"].value("content", "");
  }
  return text;
}

std::vector<std::string> TextsOf(const std::string& body) {
  std::vector<std::string> texts;
  for (const std::string& event : EventsOf(body)) {
    const Json chunk = Json::parse(event, nullptr, false);
    if (chunk.is_discarded() || !chunk.contains("choices") || chunk["choices"].empty()) continue;
    const Json& choice = chunk["choices"][0];
    const size_t index = choice["index"];
    if (texts.size() <= index) texts.resize(index + 1);
    if (choice.contains("text")) texts[index] += choice["text"].get<std::string>();
    if (choice.contains("delta")) texts[index] += choice["delta"].value("content", "");
  }
  return texts;
}

std::string FinishReasonOf(const std::string& body) {
  for (const std::string& event : EventsOf(body)) {
    const Json chunk = Json::parse(event, nullptr, false);
    if (chunk.is_discarded() || !chunk.contains("choices") || chunk["choices"].empty()) continue;
    if (chunk["choices"][0]["finish_reason"].is_string()) return chunk["choices"][0]["finish_reason"];
  }
  return "";
}

}  // namespace cofferdam::http
