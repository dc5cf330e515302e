// A client's connection as a handler sees it.
#ifndef COFFERDAM_GATEWAY_CLIENT_H_
#define COFFERDAM_GATEWAY_CLIENT_H_

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "gateway/wake.h"

namespace cofferdam::gateway {

// The socket with time limits, and a watch for the client's disappearance while it is answered. Everything happens on
// the strand of the socket, which every pending operation's owner keeps alive through `shared_from_this`.
class Client : public std::enable_shared_from_this<Client> {
 public:
  struct Limits {
    size_t buffer_bytes;  // of the read buffer: a head, and what a client sends ahead
    std::chrono::milliseconds write_timeout;
  };
  Client(boost::asio::ip::tcp::socket socket, Limits limits);

  boost::asio::ip::tcp::socket& socket() { return socket_; }
  boost::asio::any_io_executor strand() { return socket_.get_executor(); }
  // Bytes that were read and not consumed. Not to be touched while the watch is on.
  boost::beast::flat_buffer& buffer() { return buffer_; }

  // Cancels whatever the socket does when `longest` has passed, unless Disarm comes first.
  void Arm(std::chrono::milliseconds longest);
  void Disarm();
  // The last armed limit passed.
  bool timed_out() const { return timed_out_; }

  // Returns false when the client is gone or does not read: then nothing more can be sent.
  boost::asio::awaitable<bool> Write(std::string_view data);

  // Between these two, the end of the client's stream, an error or Close calls `on_gone` once. Bytes that come meanwhile
  // are kept for the next request, up to the buffer's limit.
  void StartWatch(std::function<void()> on_gone);
  boost::asio::awaitable<void> StopWatch();
  // For whoever started the watch and dies before its regular end: `on_gone` is not called any more.
  void ForgetWatch() {
    watching_ = false;
    on_gone_ = nullptr;
  }
  bool gone() const { return gone_; }

  // Aborts everything that is pending. Idempotent.
  void Close();
  // Says goodbye so that an answer that was sent before the whole request was read still arrives: sends FIN, then
  // drops what comes, for a short time.
  boost::asio::awaitable<void> Linger();

 private:
  void WatchRead();
  void WatchFullBuffer();
  void Gone();

  boost::asio::ip::tcp::socket socket_;
  const Limits limits_;
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer deadline_;
  uint64_t armed_ = 0;
  bool timed_out_ = false;

  std::array<char, 2048> ahead_{};
  boost::asio::cancellation_signal stop_watch_;
  boost::asio::steady_timer look_again_;
  Wake watch_ended_;
  std::function<void()> on_gone_;
  bool watching_ = false;
  bool watch_pending_ = false;
  bool gone_ = false;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_CLIENT_H_
