// The short answers.
#ifndef COFFERDAM_GATEWAY_ROUTES_H_
#define COFFERDAM_GATEWAY_ROUTES_H_

#include <string>

#include "gateway/route.h"
#include "gateway/service.h"

namespace cofferdam::gateway {

// Answers every route but kChat and kCompletions. Does not block.
HttpReply Answer(Service& service, const Route& route, const HttpRequest& request);

// The names under which the model is served include `model`; empty means the first.
bool IsServed(const Service& service, const std::string& model);
ApiError ModelNotFound(const std::string& model);

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_ROUTES_H_
