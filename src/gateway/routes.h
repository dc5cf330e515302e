// Which paths there are, what they demand of a request, and the short answers.
#ifndef COFFERDAM_GATEWAY_ROUTES_H_
#define COFFERDAM_GATEWAY_ROUTES_H_

#include <optional>
#include <string>

#include "gateway/http_message.h"
#include "gateway/service.h"

namespace cofferdam::gateway {

enum class RouteId { kNone, kChat, kCompletions, kModels, kModel, kHealth, kMetrics, kTokenize, kDetokenize, kVersion };

struct Route {
  RouteId id = RouteId::kNone;
  std::string name;  // for metrics: the pattern, not what the client wrote
  bool post = false;
  bool needs_key = false;
};

Route FindRoute(const std::string& path);

// What can be refused before the body is read: 401, 404, 405, 411, 413, 415, 417, and the answer to OPTIONS. On success
// sets `domain`, the isolation domain of the key.
std::optional<HttpReply> CheckHead(const Service& service, const Route& route, const HttpRequest& request, std::string* domain);

// Answers every route but kChat and kCompletions. Does not block.
HttpReply Answer(Service& service, const Route& route, const HttpRequest& request);

// The names under which the model is served include `model`; empty means the first.
bool IsServed(const Service& service, const std::string& model);
ApiError ModelNotFound(const std::string& model);

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_ROUTES_H_
