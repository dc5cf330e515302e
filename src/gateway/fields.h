// Typed reads of the fields of a request's JSON object.
#ifndef COFFERDAM_GATEWAY_FIELDS_H_
#define COFFERDAM_GATEWAY_FIELDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "gateway/api_error.h"

namespace cofferdam::gateway {

using Json = nlohmann::json;

// The body as a JSON object. Errors: 400 for invalid UTF-8, invalid JSON, nesting over 64 levels, or another type; `what`
// is what their messages call it.
std::variant<Json, ApiError> ParseObject(std::string_view body, const std::string& what = "The request body");

struct NumberRange {
  double low = 0;
  double high = 0;
  bool without_low = false;  // low itself is refused
};
struct IntegerRange {
  int64_t low;
  int64_t high;
};

// A field that is absent or null takes its default. The first field of a wrong type or value sets error(), with its
// name; later reads still return defaults, so that a caller checks once at the end. Not thread-safe.
class Fields {
 public:
  // REQUIRES: object.is_object(), and that it outlives this.
  explicit Fields(const Json& object) : object_(object) {}

  // Null when the field is absent or null.
  const Json* Find(std::string_view name) const;
  double Number(std::string_view name, double otherwise, NumberRange range);
  // The same for what is passed on as a float: it is the float that must be in the range, since workers judge that one.
  float Float(std::string_view name, float otherwise, NumberRange range);
  std::optional<int64_t> Integer(std::string_view name, IntegerRange range);
  bool Bool(std::string_view name, bool otherwise);
  std::string String(std::string_view name, size_t max_bytes);

  // Records an error unless there is one already.
  void Fail(std::string_view name, std::string_view message);
  void Fail(ApiError error);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  void FailOutside(std::string_view name, NumberRange range);

  const Json& object_;
  std::optional<ApiError> error_;
};

// "a string", "an array", ...: for messages.
std::string_view TypeName(const Json& value);

// Whether `value` is an integer in the range, written without a fraction.
std::optional<int64_t> AsInteger(const Json& value, IntegerRange range);

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_FIELDS_H_
