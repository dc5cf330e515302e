#include "gateway/fields.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/utf8.h"

namespace cofferdam::gateway {
namespace {

constexpr int kMaxDepth = 64;

// Counted before parsing, so that nothing is built of a body that is only brackets.
bool TooDeep(std::string_view body) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

bool Contains(NumberRange range, double number) {
  return std::isfinite(number) && number >= range.low && number <= range.high && !(range.without_low && number == range.low);
}

}  // namespace

std::variant<Json, ApiError> ParseObject(std::string_view body, const std::string& what) {
  if (!text::IsValidUtf8(body)) return InvalidRequest(what + " is not valid UTF-8.");
  if (TooDeep(body)) return InvalidRequest(absl::StrCat(what, " is nested more than ", kMaxDepth, " levels deep."));
  Json parsed = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return InvalidRequest(what + " is not valid JSON.");
  if (!parsed.is_object()) return InvalidRequest(what + " must be a JSON object.");
  return parsed;
}

std::string_view TypeName(const Json& value) {
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a boolean";
  if (value.is_number()) return "a number";
  if (value.is_array()) return "an array";
  return value.is_null() ? "null" : "an object";
}

std::optional<int64_t> AsInteger(const Json& value, IntegerRange range) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  const auto number = value.get<int64_t>();
  if (number < range.low || number > range.high) return std::nullopt;
  return number;
}

const Json* Fields::Find(std::string_view name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

double Fields::Number(std::string_view name, double otherwise, NumberRange range) {
  const Json* value = Find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_number()) {
    Fail(name, absl::StrCat("must be a number, not ", std::string(TypeName(*value))));
    return otherwise;
  }
  const auto number = value->get<double>();
  if (Contains(range, number)) return number;
  FailOutside(name, range);
  return otherwise;
}

float Fields::Float(std::string_view name, float otherwise, NumberRange range) {
  const double number = Number(name, otherwise, range);
  const auto rounded = static_cast<float>(number);
  if (Contains(range, rounded)) return rounded;
  FailOutside(name, range);
  return otherwise;
}

void Fields::FailOutside(std::string_view name, NumberRange range) {
  Fail(name, absl::StrCat("must be ", range.without_low ? "over " : "from ", range.low, range.without_low ? " and up to " : " to ",
                          range.high));
}

std::optional<int64_t> Fields::Integer(std::string_view name, IntegerRange range) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = AsInteger(*value, range);
  if (!number.has_value()) Fail(name, absl::StrCat("must be an integer from ", range.low, " to ", range.high));
  return number;
}

bool Fields::Bool(std::string_view name, bool otherwise) {
  const Json* value = Find(name);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  Fail(name, absl::StrCat("must be a boolean, not ", std::string(TypeName(*value))));
  return otherwise;
}

std::string Fields::String(std::string_view name, size_t max_bytes) {
  const Json* value = Find(name);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    Fail(name, absl::StrCat("must be a string, not ", std::string(TypeName(*value))));
    return {};
  }
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > max_bytes) {
    Fail(name, absl::StrCat("must have at most ", max_bytes, " bytes"));
    return {};
  }
  return text;
}

void Fields::Fail(std::string_view name, std::string_view message) {
  Fail(InvalidRequest(absl::StrCat("'", std::string(name), "' ", std::string(message), "."), std::string(name)));
}

void Fields::Fail(ApiError error) {
  if (!error_.has_value()) error_ = std::move(error);
}

}  // namespace cofferdam::gateway
