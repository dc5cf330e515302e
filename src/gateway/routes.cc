#include "gateway/routes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gateway/openai_request.h"
#include "gateway/openai_response.h"

namespace cofferdam::gateway {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr size_t kMaxShownBytes = 200;

std::string Dump(const OrderedJson& value) { return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

ApiError ModelNotFound(const std::string& model) {
  ApiError error =
      HttpError(404, absl::StrCat("The model '", model.substr(0, kMaxShownBytes), "' does not exist."), "model_not_found");
  error.param = "model";
  return error;
}

OrderedJson ModelJson(const Service& service, const Grant& grant, const std::string& name) {
  OrderedJson model;
  model["id"] = name;
  model["object"] = "model";
  model["created"] = service.created;
  model["owned_by"] = "cofferdam";
  uint64_t context = service.workers.fleet()->context_tokens;
  if (grant.record.limits.context_tokens > 0) context = std::min(context, grant.record.limits.context_tokens);
  model["max_model_len"] = nullptr;  // unknown while no worker is ready
  if (context > 0) model["max_model_len"] = context;
  return model;
}

HttpReply Models(const Service& service, const Grant& grant) {
  OrderedJson list;
  list["object"] = "list";
  list["data"] = OrderedJson::array();
  for (const std::string& name : service.options.served_model_names) {
    if (grant.record.Allows(name)) list["data"].push_back(ModelJson(service, grant, name));
  }
  return JsonReply(Dump(list));
}

HttpReply Model(const Service& service, const Grant& grant, const std::string& path) {
  const std::string name = path.substr(kModelPrefix.size());
  if (name.empty()) return ErrorReply(ModelNotFound(name));
  const auto model = ModelOf(service, grant, name);
  if (const ApiError* error = std::get_if<ApiError>(&model)) return ErrorReply(*error);
  return JsonReply(Dump(ModelJson(service, grant, std::get<std::string>(model))));
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

HttpReply Tokenize(const Service& service, const Grant& grant, const Json& object) {
  Fields fields(object);
  const auto model = ModelOf(service, grant, fields.String("model", 512));
  const ApiError* wrong_model = std::get_if<ApiError>(&model);
  if (fields.Find("messages") != nullptr) {
    const std::vector<text::ChatMessage> messages = ReadMessages(fields);
    const bool generation = fields.Bool("add_generation_prompt", true);
    if (fields.error().has_value()) return ErrorReply(*fields.error());
    if (wrong_model != nullptr) return ErrorReply(*wrong_model);
    const absl::StatusOr<std::string> prompt = service.chat->Apply(messages, generation);
    if (!prompt.ok()) return ErrorReply(FromStatus(prompt.status()));
    return TokenList(service, service.tokenizer->Tokenize(*prompt, true, true));
  }
  const std::string prompt = fields.String("prompt", service.options.max_body_bytes);
  const bool special = fields.Bool("add_special_tokens", true);
  if (fields.Find("prompt") == nullptr) fields.Fail("prompt", "or 'messages' must be given");
  if (fields.error().has_value()) return ErrorReply(*fields.error());
  if (wrong_model != nullptr) return ErrorReply(*wrong_model);
  return TokenList(service, service.tokenizer->Tokenize(prompt, special, true));
}

HttpReply Detokenize(const Service& service, const Grant& /*grant*/, const Json& object) {
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

HttpReply WithObject(const Service& service, const Grant& grant, const HttpRequest& request,
                     HttpReply (*answer)(const Service&, const Grant&, const Json&)) {
  const std::variant<Json, ApiError> parsed = ParseObject(request.body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return ErrorReply(*error);
  return answer(service, grant, std::get<Json>(parsed));
}

}  // namespace

HttpReply Answer(Service& service, const Route& route, const HttpRequest& request, const Grant* grant) {
  CD_CHECK(!route.needs_key || grant != nullptr, "nobody gets so far without the key that the route needs");
  switch (route.id) {
    case RouteId::kModels:
      return Models(service, *grant);
    case RouteId::kModel:
      return Model(service, *grant, request.path);
    case RouteId::kHealth:
      return Health(service);
    case RouteId::kMetrics:
      return MetricsText(service);
    case RouteId::kTokenize:
      return WithObject(service, *grant, request, Tokenize);
    case RouteId::kDetokenize:
      return WithObject(service, *grant, request, Detokenize);
    case RouteId::kVersion:
      return JsonReply(absl::StrCat("{\"version\":", JsonString(service.version), "}"));
    case RouteId::kChat:
    case RouteId::kCompletions:
    case RouteId::kNone:
    case RouteId::kUnsupported:
      break;
  }
  return ErrorReply(HttpError(500, "The route has no answer.", "internal_error"));
}

std::variant<std::string, ApiError> ModelOf(const Service& service, const Grant& grant, const std::string& asked) {
  const auto& names = service.options.served_model_names;
  if (asked.empty()) {
    const auto first = std::ranges::find_if(names, [&grant](const std::string& name) { return grant.record.Allows(name); });
    if (first != names.end()) return *first;
  } else if (std::ranges::find(names, asked) == names.end()) {
    return ModelNotFound(asked);
  } else if (grant.record.Allows(asked)) {
    return asked;
  }
  ApiError error =
      HttpError(403, "This API key may not use the model. GET /v1/models lists those that it may.", "model_not_allowed");
  error.param = "model";
  return error;
}

}  // namespace cofferdam::gateway
