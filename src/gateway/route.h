// Which paths there are, and what they demand of a request before its body is read.
#ifndef COFFERDAM_GATEWAY_ROUTE_H_
#define COFFERDAM_GATEWAY_ROUTE_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "gateway/http_message.h"
#include "gateway/key_ring.h"

namespace cofferdam::gateway {

enum class RouteId {
  kNone,
  kChat,
  kCompletions,
  kModels,
  kModel,
  kHealth,
  kMetrics,
  kTokenize,
  kDetokenize,
  kVersion,
  kUnsupported
};

inline constexpr std::string_view kModelPrefix = "/v1/models/";

struct Route {
  RouteId id = RouteId::kNone;
  std::string name;  // for metrics: the pattern, not what the client wrote
  bool post = false;
  bool needs_key = false;
};

Route FindRoute(const std::string& path);

struct HeadRules {
  const KeyRing& keys;
  size_t max_body_bytes = 0;
};

// What can be refused before the body is read: 401, 404, 405, 411, 413, 415, 417, 429, 501, and the answer to OPTIONS. On
// success sets `grant`, what the key allows, if the route needs a key; and a POST request has been counted on it.
std::optional<HttpReply> CheckHead(const HeadRules& rules, const Route& route, const HttpRequest& request,
                                   std::shared_ptr<const Grant>* grant);

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_ROUTE_H_
