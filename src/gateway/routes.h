// The short answers.
#ifndef COFFERDAM_GATEWAY_ROUTES_H_
#define COFFERDAM_GATEWAY_ROUTES_H_

#include <string>
#include <variant>

#include "gateway/route.h"
#include "gateway/service.h"

namespace cofferdam::gateway {

// Answers every route but kChat and kCompletions. Does not block. `grant` is that of the request's key, null for a route
// that needs none.
HttpReply Answer(Service& service, const Route& route, const HttpRequest& request, const Grant* grant);

// The name under which the model is served that a request asks for; an empty name asks for the first that the key may
// use. Errors: 404 model_not_found, 403 model_not_allowed.
std::variant<std::string, ApiError> ModelOf(const Service& service, const Grant& grant, const std::string& asked);

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_ROUTES_H_
