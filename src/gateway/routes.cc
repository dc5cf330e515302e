#include "gateway/routes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gateway/openai_request.h"

#ifndef COFFERDAM_VERSION
#define COFFERDAM_VERSION "0.1.0"
#endif

namespace cofferdam::gateway {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr size_t kMaxShownBytes = 200;

std::string Dump(const OrderedJson& value) { return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

std::string Allow(const Route& route) { return route.post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS"; }

bool IsJsonType(std::string_view type) {
  std::string name(type.substr(0, type.find(';')));
  absl::AsciiStrToLower(&name);
  absl::StripAsciiWhitespace(&name);
  return name == "application/json" || (absl::StartsWith(name, "application/") && absl::EndsWith(name, "+json"));
}

std::optional<HttpReply> CheckMethod(const Route& route, const HttpRequest& request) {
  if (request.method == "OPTIONS") {
    HttpReply reply;
    reply.status = 204;
    reply.headers.emplace_back("Allow", route.id == RouteId::kNone ? "GET, HEAD, POST, OPTIONS" : Allow(route));
    return reply;
  }
  if (route.id == RouteId::kNone) {
    return ErrorReply(
        HttpError(404, absl::StrCat("There is nothing at ", request.path.substr(0, kMaxShownBytes), "."), "not_found"));
  }
  const bool allowed = route.post ? request.method == "POST" : request.method == "GET" || request.method == "HEAD";
  if (allowed) return std::nullopt;
  HttpReply reply = ErrorReply(HttpError(405, absl::StrCat("This path allows ", Allow(route), "."), "method_not_allowed"));
  reply.headers.emplace_back("Allow", Allow(route));
  return reply;
}

std::optional<HttpReply> CheckBodyHead(const Service& service, const Route& route, const HttpRequest& request) {
  const size_t limit = service.options.max_body_bytes;
  if (request.content_length.value_or(0) > limit) {
    return ErrorReply(HttpError(413, absl::StrCat("The request body is limited to ", limit, " bytes."), "body_too_large"));
  }
  if (!request.expect.empty() && !absl::EqualsIgnoreCase(request.expect, "100-continue")) {
    return ErrorReply(HttpError(417, "Only 'Expect: 100-continue' is understood."));
  }
  if (!route.post) return std::nullopt;
  if (!request.chunked && !request.content_length.has_value()) {
    return ErrorReply(HttpError(411, "A Content-Length or chunked transfer coding is needed."));
  }
  if (!request.content_type.empty() && !IsJsonType(request.content_type)) {
    return ErrorReply(HttpError(415, "The content type must be application/json."));
  }
  if (!request.content_encoding.empty() && !absl::EqualsIgnoreCase(request.content_encoding, "identity")) {
    return ErrorReply(HttpError(415, "A compressed request body is not supported."));
  }
  return std::nullopt;
}

OrderedJson ModelJson(const Service& service, const std::string& name) {
  OrderedJson model;
  model["id"] = name;
  model["object"] = "model";
  model["created"] = service.created;
  model["owned_by"] = "cofferdam";
  const uint64_t context = service.workers.fleet()->context_tokens;
  model["max_model_len"] = nullptr;  // unknown while no worker is ready
  if (context > 0) model["max_model_len"] = context;
  return model;
}

HttpReply Models(const Service& service) {
  OrderedJson list;
  list["object"] = "list";
  list["data"] = OrderedJson::array();
  for (const std::string& name : service.options.served_model_names) list["data"].push_back(ModelJson(service, name));
  return JsonReply(Dump(list));
}

HttpReply Model(const Service& service, const std::string& path) {
  const std::string name = path.substr(kModelPrefix.size());
  if (name.empty() || !IsServed(service, name)) return ErrorReply(ModelNotFound(name));
  return JsonReply(Dump(ModelJson(service, name)));
}

HttpReply Health(const Service& service) {
  const std::shared_ptr<const Fleet> fleet = service.workers.fleet();
  const bool ready = fleet->ready && !service.stopping;
  OrderedJson body;
  body["status"] = ready ? "ok" : "unavailable";
  body["decode_workers"] = fleet->routable.size();
  if (fleet->context_tokens > 0) body["max_model_len"] = fleet->context_tokens;
  body["problems"] = fleet->problems;
  if (service.stopping) body["problems"].push_back("the gateway is stopping");
  HttpReply reply = JsonReply(Dump(body));
  if (!ready) {
    reply.status = 503;
    reply.headers.emplace_back("Retry-After", "1");
  }
  return reply;
}

HttpReply MetricsText(Service& service) {
  service.metrics.running = service.in_flight.used();
  service.metrics.waiting = service.queue.used();
  HttpReply reply;
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = service.metrics.Render(service.workers.Report());
  return reply;
}

HttpReply TokenList(const Service& service, const absl::StatusOr<std::vector<TokenId>>& tokens) {
  if (!tokens.ok()) return ErrorReply(FromStatus(tokens.status()));
  OrderedJson body;
  body["count"] = tokens->size();
  body["max_model_len"] = service.workers.fleet()->context_tokens;
  body["tokens"] = *tokens;
  return JsonReply(Dump(body));
}

HttpReply Tokenize(const Service& service, const Json& object) {
  Fields fields(object);
  const std::string model = fields.String("model", 512);
  if (fields.Find("messages") != nullptr) {
    const std::vector<text::ChatMessage> messages = ReadMessages(fields);
    const bool generation = fields.Bool("add_generation_prompt", true);
    if (fields.error().has_value()) return ErrorReply(*fields.error());
    if (!IsServed(service, model)) return ErrorReply(ModelNotFound(model));
    const absl::StatusOr<std::string> prompt = service.chat->Apply(messages, generation);
    if (!prompt.ok()) return ErrorReply(FromStatus(prompt.status()));
    return TokenList(service, service.tokenizer->Tokenize(*prompt, true, true));
  }
  const std::string prompt = fields.String("prompt", service.options.max_body_bytes);
  const bool special = fields.Bool("add_special_tokens", true);
  if (fields.Find("prompt") == nullptr) fields.Fail("prompt", "or 'messages' must be given");
  if (fields.error().has_value()) return ErrorReply(*fields.error());
  if (!IsServed(service, model)) return ErrorReply(ModelNotFound(model));
  return TokenList(service, service.tokenizer->Tokenize(prompt, special, true));
}

HttpReply Detokenize(const Service& service, const Json& object) {
  Fields fields(object);
  const Json* list = fields.Find("tokens");
  std::vector<TokenId> tokens;
  if (list == nullptr) {
    fields.Fail("tokens", "is missing");
  } else {
    tokens = ReadTokens(fields, "tokens", *list, service.tokenizer->vocabulary_size());
  }
  if (fields.error().has_value()) return ErrorReply(*fields.error());
  OrderedJson body;
  body["prompt"] = service.tokenizer->Detokenize(tokens, true);
  return JsonReply(Dump(body));
}

HttpReply WithObject(const Service& service, const HttpRequest& request, HttpReply (*answer)(const Service&, const Json&)) {
  const std::variant<Json, ApiError> parsed = ParseObject(request.body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return ErrorReply(*error);
  return answer(service, std::get<Json>(parsed));
}

}  // namespace

Route FindRoute(const std::string& path) {
  static const std::pair<std::string_view, Route> kRoutes[] = {
      {"/v1/chat/completions", {RouteId::kChat, "/v1/chat/completions", true, true}},
      {"/v1/completions", {RouteId::kCompletions, "/v1/completions", true, true}},
      {"/v1/models", {RouteId::kModels, "/v1/models", false, true}},
      {"/health", {RouteId::kHealth, "/health", false, false}},
      {"/ready", {RouteId::kHealth, "/ready", false, false}},
      {"/metrics", {RouteId::kMetrics, "/metrics", false, false}},
      {"/version", {RouteId::kVersion, "/version", false, false}},
      {"/tokenize", {RouteId::kTokenize, "/tokenize", true, true}},
      {"/detokenize", {RouteId::kDetokenize, "/detokenize", true, true}},
  };
  for (const auto& [known, route] : kRoutes) {
    if (path == known) return route;
  }
  if (path.starts_with(kModelPrefix)) return {RouteId::kModel, "/v1/models/{id}", false, true};
  return {RouteId::kNone, "other", false, false};
}

std::optional<HttpReply> CheckHead(const Service& service, const Route& route, const HttpRequest& request, std::string* domain) {
  if (std::optional<HttpReply> refusal = CheckMethod(route, request)) return refusal;
  if (route.needs_key) {
    const std::optional<std::string> known = service.keys.DomainFor(request.authorization);
    if (!known.has_value()) {
      return ErrorReply(
          HttpError(401, "The API key is missing or wrong. Send it as 'Authorization: Bearer KEY'.", "invalid_api_key"));
    }
    *domain = *known;
  }
  return CheckBodyHead(service, route, request);
}

HttpReply Answer(Service& service, const Route& route, const HttpRequest& request) {
  switch (route.id) {
    case RouteId::kModels:
      return Models(service);
    case RouteId::kModel:
      return Model(service, request.path);
    case RouteId::kHealth:
      return Health(service);
    case RouteId::kMetrics:
      return MetricsText(service);
    case RouteId::kTokenize:
      return WithObject(service, request, Tokenize);
    case RouteId::kDetokenize:
      return WithObject(service, request, Detokenize);
    case RouteId::kVersion:
      return JsonReply(R"({"version":")" COFFERDAM_VERSION R"("})");
    case RouteId::kChat:
    case RouteId::kCompletions:
    case RouteId::kNone:
      break;
  }
  return ErrorReply(HttpError(500, "The route has no answer.", "internal_error"));
}

bool IsServed(const Service& service, const std::string& model) {
  const auto& names = service.options.served_model_names;
  return model.empty() || std::find(names.begin(), names.end(), model) != names.end();
}

ApiError ModelNotFound(const std::string& model) {
  ApiError error =
      HttpError(404, absl::StrCat("The model '", model.substr(0, kMaxShownBytes), "' does not exist."), "model_not_found");
  error.param = "model";
  return error;
}

}  // namespace cofferdam::gateway
