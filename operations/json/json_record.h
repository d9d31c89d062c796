#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mapping/base/enum_names.h"
#include "mapping/base/fields.h"
#include "mapping/state/value.h"

// A report lists the fields of its JSON once, for the JSON and for its schema:
//
//   constexpr auto json_record(const Place*) {
//     return JsonRecord("place", "Where a chunk is.",
//                       Field("file", &Place::file, "Data file."),
//                       Field("is_last", [](const Place& place) { return … }, "Whether …"));
//   }
//
// The type of a field determines both: numbers, texts, lists and other records appear as they are,
// an optional as its value or null, an enumeration as the text of its to_string(). The types below
// are for JSON that no C++ type stands for.
namespace dckpt {

/// The fields of a type in their order, and the name that the schema gives to it; without a name,
/// the schema repeats the fields where the record occurs.
template <typename... Entries>
struct JsonRecord {
  const char* name;
  const char* about;
  std::tuple<Entries...> entries;

  constexpr JsonRecord(const char* in_schema, const char* for_readers, Entries... of)
      : name(in_schema), about(for_readers), entries(of...) {}
};

template <typename T>
concept HasJsonRecord = requires(const T* record) {
  json_record(record);
};

template <HasJsonRecord T>
inline constexpr auto kJsonRecord = json_record(static_cast<const T*>(nullptr));

/// Fields that a record has as if they were its own: `get` returns another record, or an optional
/// one, all of whose fields are missing if it is empty.
template <typename Get>
struct JsonPart {
  Get get;

  constexpr explicit JsonPart(Get of) : get(of) {}
};

/// A field that is missing, not null, if it has no value.
template <typename T>
struct IfAny {
  std::optional<T> value{};
};
template <typename T>
IfAny(std::optional<T>) -> IfAny<T>;

/// An object whose members no list has.
struct AnyObject {
  Value json{};
};

/// An object whose members are named by the data.
template <typename T>
using ByKey = std::vector<std::pair<std::string, T>>;

/// A time in nanoseconds since 1970, in JSON "2026-11-25T01:42:07Z", or null for 0.
struct UtcTime {
  std::int64_t since_1970 = 0;
};

/// 64 hexadecimal digits.
struct Sha256Text {
  std::string_view digits{};
};

/// A field whose value is one of a few words, given as texts or as values of an enumeration.
template <typename Names, typename Get>
struct InWords {
  Names names;
  Get get;

  template <typename Record>
  auto operator()(const Record& record) const {
    return word_of(std::invoke(get, record));
  }

 private:
  template <typename T>
  std::optional<std::string_view> word_of(const std::optional<T>& value) const {
    return value ? std::optional(word_of(*value)) : std::nullopt;
  }
  template <typename T>
  std::string_view word_of(const T& value) const {
    if constexpr (std::is_enum_v<T>)
      return name_of(names, value);
    else
      return value;
  }
};
template <typename Names, typename Get>
constexpr InWords<Names, Get> in_words(Names names, Get get) {
  return {names, get};
}

/// A field of what a record holds or points to.
template <typename Outer, typename Inner>
struct Nested {
  Outer outer;
  Inner inner;

  template <typename Record>
  decltype(auto) operator()(const Record& record) const {
    using Held = std::invoke_result_t<Outer, const Record&>;
    static_assert(std::is_lvalue_reference_v<Held> || std::is_pointer_v<Held>);
    return std::invoke(inner, std::invoke(outer, record));
  }
};
template <typename Outer, typename Inner>
constexpr Nested<Outer, Inner> nested(Outer outer, Inner inner) {
  return {outer, inner};
}

/// Returns the time as text, or none.
Value to_value(const UtcTime& time);

template <HasJsonRecord T>
void add_json_fields(Value& json, const T& record);

namespace json_record_detail {

template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <typename T>
inline constexpr bool kIsByKey = false;
template <typename T>
inline constexpr bool kIsByKey<ByKey<T>> = true;
template <typename T>
inline constexpr bool kIsIfAny = false;
template <typename T>
inline constexpr bool kIsIfAny<IfAny<T>> = true;

}  // namespace json_record_detail

/// Returns what a field has as JSON.
template <typename T>
Value json_value(const T& value) {
  if constexpr (json_record_detail::kIsOptional<T>) {
    return value ? json_value(*value) : Value();
  } else if constexpr (HasJsonRecord<T>) {
    Value json = Value::dict();
    add_json_fields(json, value);
    return json;
  } else if constexpr (json_record_detail::kIsByKey<T>) {
    Value json = Value::dict();
    for (const auto& [key, member] : value) json[key] = json_value(member);
    return json;
  } else if constexpr (std::same_as<T, UtcTime>) {
    return to_value(value);
  } else if constexpr (std::same_as<T, Sha256Text>) {
    return value.digits;
  } else if constexpr (std::same_as<T, AnyObject>) {
    return value.json;
  } else if constexpr (std::is_enum_v<T>) {
    return to_string(value);
  } else if constexpr (requires { value.begin(); } &&
                       !std::convertible_to<const T&, std::string_view>) {
    ValueList list;
    for (const auto& member : value) list.push_back(json_value(member));
    return Value::list(std::move(list));
  } else {
    return Value(value);
  }
}

template <HasJsonRecord T, typename Member>
void add_json_entry(Value& json, const T& record, const Field<Member>& field) {
  const auto& value = std::invoke(field.member, record);
  if constexpr (json_record_detail::kIsIfAny<std::remove_cvref_t<decltype(value)>>) {
    if (value.value) json[field.name] = json_value(*value.value);
  } else {
    json[field.name] = json_value(value);
  }
}

template <HasJsonRecord T, typename Get>
void add_json_entry(Value& json, const T& record, const JsonPart<Get>& part) {
  const auto& fields = std::invoke(part.get, record);
  if constexpr (json_record_detail::kIsOptional<std::remove_cvref_t<decltype(fields)>>) {
    if (fields) add_json_fields(json, *fields);
  } else {
    add_json_fields(json, fields);
  }
}

template <HasJsonRecord T>
void add_json_fields(Value& json, const T& record) {
  std::apply([&](const auto&... entry) { (add_json_entry(json, record, entry), ...); },
             kJsonRecord<T>.entries);
}

/// Returns the text of a report as it is printed.
std::string json_text(const Value& report);

}  // namespace dckpt
