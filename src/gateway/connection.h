// One client connection: requests in turn, each read, checked, answered.
#ifndef COFFERDAM_GATEWAY_CONNECTION_H_
#define COFFERDAM_GATEWAY_CONNECTION_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>

#include "gateway/client.h"
#include "gateway/http_message.h"
#include "gateway/route.h"
#include "gateway/service.h"

namespace cofferdam::gateway {

class HttpParser;

// Runs on the strand of its socket; RequestStop alone may be called from any thread. `service` must outlive it.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Service& service, boost::asio::ip::tcp::socket socket);
  ~Connection();

  // Serves requests until the client or a limit ends the connection. Exceptions end here.
  static boost::asio::awaitable<void> Serve(std::shared_ptr<Connection> self);
  // Tells a client that there is no room for it.
  static boost::asio::awaitable<void> Refuse(std::shared_ptr<Connection> self);

  // Ends the connection when it is idle or after the answer in progress; with `force` at once.
  void RequestStop(bool force);

 private:
  boost::asio::awaitable<void> ServeAll();
  // One request and its answer. Returns whether another may follow.
  boost::asio::awaitable<bool> ServeOne();
  // Waits for the first byte of a request. Returns false when there will be none.
  boost::asio::awaitable<bool> AwaitRequest();
  boost::asio::awaitable<bool> ReadHead(HttpParser& parser);
  boost::asio::awaitable<bool> ReadBody(HttpParser& parser, const Route& route, const HttpRequest& request);
  // Sends the answer and closes: part of the request was not read. Without a `request_id` it gets one.
  boost::asio::awaitable<void> ReplyAndClose(HttpReply reply, const std::string& route, std::string request_id = {});
  boost::asio::awaitable<bool> Dispatch(HttpRequest request, const Route& route, std::shared_ptr<const Grant> grant,
                                        Quota::Share share);
  // The answer of a short route; long bodies are worked on by the text pool. `grant` is null where no key is needed.
  boost::asio::awaitable<HttpReply> AnswerSoon(const Route& route, const HttpRequest& request, const Grant* grant);
  Framing FramingOf(const HttpRequest& request) const;

  Service& service_;
  const std::shared_ptr<Client> client_;
  bool first_ = true;
  bool idle_ = false;
  bool stop_ = false;
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_CONNECTION_H_
