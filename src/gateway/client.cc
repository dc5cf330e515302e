#include "gateway/client.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/buffer.hpp>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace cofferdam::gateway {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::chrono::milliseconds kLookAgain{250};
constexpr std::chrono::milliseconds kLinger{1000};
constexpr size_t kLingerBytes = size_t{64} << 20;

// Whether the peer has closed or reset, without reading.
bool PeerClosed(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return true;
  return info.tcpi_state != TCP_ESTABLISHED;
}

}  // namespace

Client::Client(asio::ip::tcp::socket socket, Limits limits)
    : socket_(std::move(socket)),
      limits_(limits),
      buffer_(limits.buffer_bytes),
      deadline_(socket_.get_executor()),
      look_again_(socket_.get_executor()),
      watch_ended_(socket_.get_executor()) {}

void Client::Arm(std::chrono::milliseconds longest) {
  timed_out_ = false;
  deadline_.expires_after(longest);
  deadline_.async_wait([self = shared_from_this(), mine = ++armed_](error_code error) {
    // Disarm may have come after the timer fired and before this ran.
    if (error || mine != self->armed_) return;
    self->timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
  });
}

void Client::Disarm() {
  ++armed_;
  deadline_.cancel();
}

asio::awaitable<bool> Client::Write(std::string_view data) {
  if (gone_ || !socket_.is_open()) co_return false;
  if (data.empty()) co_return true;
  error_code error;
  size_t sent = 0;
  // The limit is on progress, not on the whole: a long answer over a slow line is fine.
  while (!error && sent < data.size()) {
    Arm(limits_.write_timeout);
    const auto rest = asio::buffer(data.data() + sent, data.size() - sent);
    sent += co_await socket_.async_write_some(rest, asio::redirect_error(asio::use_awaitable, error));
    Disarm();
  }
  if (error) Gone();
  co_return !error;
}

void Client::StartWatch(std::function<void()> on_gone) {
  CD_CHECK(!watching_ && !watch_pending_, "one watch at a time");
  watching_ = true;
  on_gone_ = std::move(on_gone);
  WatchRead();
}

void Client::WatchRead() {
  if (buffer_.size() + ahead_.size() > limits_.buffer_bytes) return WatchFullBuffer();
  watch_pending_ = true;
  socket_.async_read_some(
      asio::buffer(ahead_),
      asio::bind_cancellation_slot(stop_watch_.slot(), [self = shared_from_this()](error_code error, size_t bytes) {
        self->watch_pending_ = false;
        if (bytes > 0) {
          const auto room = self->buffer_.prepare(bytes);
          std::memcpy(room.data(), self->ahead_.data(), bytes);
          self->buffer_.commit(bytes);
        }
        if (!self->watching_) {
          self->watch_ended_.Set();
          return;
        }
        if (error) return self->Gone();
        self->WatchRead();
      }));
}

void Client::WatchFullBuffer() {
  // No room to read, and so no end of the stream to see: the kernel's state of the connection is asked instead.
  watch_pending_ = true;
  look_again_.expires_after(kLookAgain);
  look_again_.async_wait([self = shared_from_this()](error_code) {
    self->watch_pending_ = false;
    if (!self->watching_) {
      self->watch_ended_.Set();
      return;
    }
    if (!self->socket_.is_open() || PeerClosed(self->socket_.native_handle())) return self->Gone();
    self->WatchFullBuffer();
  });
}

asio::awaitable<void> Client::StopWatch() {
  watching_ = false;
  on_gone_ = nullptr;
  if (watch_pending_) {
    stop_watch_.emit(asio::cancellation_type::terminal);
    look_again_.cancel();
  }
  while (watch_pending_) co_await watch_ended_.Wait(std::chrono::seconds(1));
}

void Client::Gone() {
  gone_ = true;
  if (const auto tell = std::exchange(on_gone_, nullptr)) tell();
}

void Client::Close() {
  error_code ignored;
  socket_.close(ignored);
  look_again_.cancel();
  if (watching_) Gone();
}

asio::awaitable<void> Client::Linger() {
  error_code error;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, error);
  Arm(kLinger);
  size_t dropped = 0;
  while (!error && dropped < kLingerBytes) {
    dropped += co_await socket_.async_read_some(asio::buffer(ahead_), asio::redirect_error(asio::use_awaitable, error));
    if (timed_out_) break;
  }
  Disarm();
}

}  // namespace cofferdam::gateway
