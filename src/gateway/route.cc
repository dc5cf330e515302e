#include "gateway/route.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace cofferdam::gateway {
namespace {

constexpr size_t kMaxShownBytes = 200;

std::string Allow(const Route& route) { return route.post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS"; }

bool IsJsonType(std::string_view type) {
  std::string name(type.substr(0, type.find(';')));
  absl::AsciiStrToLower(&name);
  absl::StripAsciiWhitespace(&name);
  return name == "application/json" || (absl::StartsWith(name, "application/") && absl::EndsWith(name, "+json"));
}

// What other servers have under these paths and this one has not: said plainly, with a status that clients do not retry.
constexpr std::string_view kUnsupported[] = {"/v1/responses",
                                             "/v1/messages",
                                             "/v1/messages/count_tokens",
                                             "/v1/embeddings",
                                             "/embeddings",
                                             "/v1/rerank",
                                             "/v2/rerank",
                                             "/rerank",
                                             "/v1/score",
                                             "/score",
                                             "/pooling",
                                             "/classify",
                                             "/v1/audio/speech",
                                             "/v1/audio/transcriptions",
                                             "/v1/audio/translations",
                                             "/v1/images/generations",
                                             "/v1/images/edits",
                                             "/v1/images/variations",
                                             "/v1/moderations",
                                             "/v1/files",
                                             "/v1/batches",
                                             "/v1/fine_tuning/jobs",
                                             "/v1/assistants",
                                             "/v1/threads",
                                             "/v1/vector_stores",
                                             "/infill",
                                             "/v1/realtime"};

ApiError Unsupported(const Route& route) {
  return HttpError(
      501, absl::StrCat(route.name, " is not served here. This server generates text: /v1/chat/completions and /v1/completions."),
      "not_implemented");
}

std::optional<HttpReply> CheckMethod(const Route& route, const HttpRequest& request) {
  if (request.method == "OPTIONS") {
    HttpReply reply;
    reply.status = 204;
    const bool any = route.id == RouteId::kNone || route.id == RouteId::kUnsupported;
    reply.headers.emplace_back("Allow", any ? "GET, HEAD, POST, OPTIONS" : Allow(route));
    return reply;
  }
  if (route.id == RouteId::kNone) {
    return ErrorReply(
        HttpError(404, absl::StrCat("There is nothing at ", request.path.substr(0, kMaxShownBytes), "."), "not_found"));
  }
  if (route.id == RouteId::kUnsupported) return std::nullopt;
  const bool allowed = route.post ? request.method == "POST" : request.method == "GET" || request.method == "HEAD";
  if (allowed) return std::nullopt;
  HttpReply reply = ErrorReply(HttpError(405, absl::StrCat("This path allows ", Allow(route), "."), "method_not_allowed"));
  reply.headers.emplace_back("Allow", Allow(route));
  return reply;
}

std::optional<HttpReply> CheckBodyHead(size_t max_body_bytes, const Route& route, const HttpRequest& request) {
  if (request.content_length.value_or(0) > max_body_bytes) {
    return ErrorReply(HttpError(413, absl::StrCat("The request body is limited to ", max_body_bytes, " bytes."), "body_too_large"));
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
  if (std::ranges::find(kUnsupported, path) != std::end(kUnsupported)) return {RouteId::kUnsupported, path, false, true};
  if (path.starts_with(kModelPrefix)) return {RouteId::kModel, "/v1/models/{id}", false, true};
  return {RouteId::kNone, "other", false, false};
}

std::optional<HttpReply> CheckHead(const HeadRules& rules, const Route& route, const HttpRequest& request,
                                   std::shared_ptr<const Grant>* grant) {
  if (std::optional<HttpReply> refusal = CheckMethod(route, request)) return refusal;
  if (!route.needs_key) return CheckBodyHead(rules.max_body_bytes, route, request);
  std::shared_ptr<const Grant> known = rules.keys.Find(request.authorization);
  if (known == nullptr) {
    return ErrorReply(
        HttpError(401, "The API key is missing or wrong. Send it as 'Authorization: Bearer KEY'.", "invalid_api_key"));
  }
  if (route.id == RouteId::kUnsupported) return ErrorReply(Unsupported(route));
  if (std::optional<HttpReply> refusal = CheckBodyHead(rules.max_body_bytes, route, request)) return refusal;
  if (route.post) {
    const auto now = std::chrono::steady_clock::now();
    if (const std::optional<ApiError> error = known->use->TakeRequest(now)) {
      HttpReply reply = ErrorReply(*error);
      std::ranges::move(known->use->Headers(now), std::back_inserter(reply.headers));
      return reply;
    }
  }
  *grant = std::move(known);
  return std::nullopt;
}

}  // namespace cofferdam::gateway
