#pragma once

#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/geometry/dtype.h"
#include "mapping/geometry/shape.h"
#include "operations/json/json_record.h"

// JSON schemas (draft 2020-12) of what operations/json/json_record.h describes.
namespace dckpt {

constexpr ErrorCode last_of(ErrorCode) {
  return ErrorCode::kInternal;
}
constexpr DType last_of(DType) {
  return DType::kQInt32;
}

namespace json_schema {

/// The type of a field of a record.
template <typename T, typename Getter>
using Got = std::remove_cvref_t<std::invoke_result_t<Getter, const T&>>;

template <typename T>
inline constexpr bool kIsInWords = false;
template <typename Names, typename Get>
inline constexpr bool kIsInWords<InWords<Names, Get>> = true;

/// The schema of one command. Records that have names are described once, below "$defs".
class Page {
 public:
  /// Returns the schema of a type.
  template <typename T>
  Value of() {
    using namespace json_record_detail;
    if constexpr (kIsOptional<T>) {
      return or_null(of<typename T::value_type>());
    } else if constexpr (HasJsonRecord<T>) {
      return of_record<T>();
    } else if constexpr (kIsByKey<T>) {
      using Member = typename T::value_type::second_type;
      return Value::dict({{"type", "object"}, {"additionalProperties", of<Member>()}});
    } else if constexpr (std::same_as<T, UtcTime>) {
      constexpr auto kPattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$";
      return or_null(Value::dict({{"type", "string"}, {"pattern", kPattern}}));
    } else if constexpr (std::same_as<T, Sha256Text>) {
      return Value::dict({{"type", "string"}, {"pattern", "^[0-9a-f]{64}$"}});
    } else if constexpr (std::same_as<T, AnyObject>) {
      return Value::dict({{"type", "object"}});
    } else if constexpr (std::same_as<T, DType>) {
      return reference("dtype", [] {
        return described("Element type, by its name in PyTorch (float6_* by the same rule).",
                         one_of(names<DType>()));
      });
    } else if constexpr (std::same_as<T, Shape>) {
      return reference("shape", [] {
        const Value extent = Value::dict({{"type", "integer"}, {"minimum", 0}});
        return described("Extents or indices along each axis; empty for a scalar.",
                         Value::dict({{"type", "array"}, {"items", extent}}));
      });
    } else if constexpr (std::is_enum_v<T>) {
      return one_of(names<T>());
    } else if constexpr (std::same_as<T, bool>) {
      return Value::dict({{"type", "boolean"}});
    } else if constexpr (std::unsigned_integral<T>) {
      return Value::dict({{"type", "integer"}, {"minimum", 0}});
    } else if constexpr (std::integral<T>) {
      return Value::dict({{"type", "integer"}});
    } else if constexpr (std::floating_point<T>) {
      return Value::dict({{"type", "number"}});
    } else if constexpr (std::constructible_from<std::string_view, const T&>) {
      return Value::dict({{"type", "string"}});
    } else {
      using Member = std::remove_cv_t<typename T::value_type>;
      return Value::dict({{"type", "array"}, {"items", of<Member>()}});
    }
  }

  /// Returns the schema of a record's fields.
  template <HasJsonRecord T>
  Value object() {
    Value schema = Value::dict({{"type", "object"}});
    Object fields;
    add<T>(fields);
    return finish(schema, fields);
  }

  /// Returns "$ref" to a schema that `make` describes once.
  template <typename Make>
  Value reference(const std::string& name, const Make& make) {
    if (defs_.find(name) == nullptr) {
      defs_[name] = Value();  // its place is where it is first mentioned
      defs_[name] = make();
    }
    return Value::dict({{"$ref", "#/$defs/" + name}});
  }

  static Value described(const std::string& about, const Value& schema) {
    if (about.empty()) return schema;
    Value whole = Value::dict({{"description", about}});
    for (const auto& [name, value] : schema.as_dict()) whole[name] = value;
    return whole;
  }

  static Value or_null(Value schema) {
    if (schema.find("$ref") != nullptr)
      return Value::dict({{"anyOf", Value::list({Value::dict({{"type", "null"}}), schema})}});
    if (schema.contains("anyOf"))
      schema["anyOf"].mutable_items().push_back(Value::dict({{"type", "null"}}));
    if (schema.contains("enum")) schema["enum"].mutable_items().push_back(Value());
    if (schema.contains("type")) schema["type"] = Value::list({schema["type"], "null"});
    return schema;
  }

  static Value one_of(const std::vector<std::string>& words) {
    return Value::dict({{"enum", Value::list(ValueList(words.begin(), words.end()))}});
  }

  /// Returns the whole: `schema` with its title and everything that it refers to.
  Value whole(const std::string& title, const std::string& about, const Value& schema) const {
    Value page = Value::dict(
        {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", title}});
    page["description"] = about;
    for (const auto& [name, value] : schema.as_dict()) page[name] = value;
    if (!defs_.as_dict().empty()) page["$defs"] = defs_;
    return page;
  }

 private:
  struct Object {
    ValueList required{};
    Value properties = Value::dict();
    Value together = Value::dict();  // fields that are there if one of them is
  };

  template <typename T>
  static std::vector<std::string> names() {
    std::vector<std::string> names;
    for (int i = 0; i <= static_cast<int>(last_of(T{})); ++i)
      names.emplace_back(to_string(static_cast<T>(i)));
    return names;
  }

  template <HasJsonRecord T>
  Value of_record() {
    const auto make = [&] { return described(kJsonRecord<T>.about, object<T>()); };
    const std::string name = kJsonRecord<T>.name;
    return name.empty() ? make() : reference(name, make);
  }

  template <HasJsonRecord T>
  void add(Object& to) {
    std::apply([&](const auto&... entry) { (add_entry<T>(to, entry), ...); },
               kJsonRecord<T>.entries);
  }

  template <typename T, typename Member>
  void add_entry(Object& to, const Field<Member>& field) {
    using Type = Got<T, Member>;
    Value schema;
    if constexpr (kIsInWords<Member>) {
      std::vector<std::string> words;
      for (const auto& name : field.member.names) words.emplace_back(word(name));
      schema = one_of(words);
      if constexpr (json_record_detail::kIsOptional<Type>) schema = or_null(schema);
    } else if constexpr (json_record_detail::kIsIfAny<Type>) {
      schema = of<typename decltype(Type::value)::value_type>();
    } else {
      schema = of<Type>();
    }
    to.properties[field.name] = described(field.about, schema);
    if constexpr (!json_record_detail::kIsIfAny<Type>) to.required.emplace_back(field.name);
  }

  template <typename T, typename Get>
  void add_entry(Object& to, const JsonPart<Get>&) {
    using Type = Got<T, Get>;
    if constexpr (json_record_detail::kIsOptional<Type>) {
      Object part;
      add<typename Type::value_type>(part);
      for (const auto& [name, schema] : part.properties.as_dict()) to.properties[name] = schema;
      for (const Value& name : part.required) {
        ValueList others = part.required;
        std::erase(others, name);
        if (!others.empty()) to.together[name] = Value::list(std::move(others));
      }
    } else {
      add<Type>(to);
    }
  }

  static std::string_view word(std::string_view name) { return name; }
  template <typename Enum>
  static std::string_view word(const std::pair<Enum, std::string_view>& name) {
    return name.second;
  }

  static Value finish(Value schema, Object& fields) {
    schema["required"] = Value::list(std::move(fields.required));
    schema["additionalProperties"] = false;
    schema["properties"] = std::move(fields.properties);
    if (!fields.together.as_dict().empty())
      schema["dependentRequired"] = std::move(fields.together);
    return schema;
  }

  Value defs_ = Value::dict();
};

}  // namespace json_schema
}  // namespace dckpt
