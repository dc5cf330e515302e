// Lets a coroutine sleep until something happens on its strand.
#ifndef COFFERDAM_GATEWAY_WAKE_H_
#define COFFERDAM_GATEWAY_WAKE_H_

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>

namespace cofferdam::gateway {

// A flag with one waiter. All calls come from one strand. A Set without a waiter is kept for the next Wait.
class Wake {
 public:
  explicit Wake(const boost::asio::any_io_executor& strand) : timer_(strand) {}

  void Set() {
    set_ = true;
    timer_.cancel();
  }

  // Returns after a Set or after `longest`.
  boost::asio::awaitable<void> Wait(std::chrono::steady_clock::duration longest) {
    if (!set_) {
      timer_.expires_after(longest);
      boost::system::error_code ignored;
      co_await timer_.async_wait(boost::asio::redirect_error(boost::asio::use_awaitable, ignored));
    }
    set_ = false;
  }

 private:
  boost::asio::steady_timer timer_;
  bool set_ = false;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_WAKE_H_
