#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/error.h"
#include "mapping/base/fields.h"
#include "mapping/state/value.h"

// A struct of the trainer becomes a dict of the state by its list of fields
// (mapping/base/fields.h):
//
//   struct RunConfig {
//     std::string name;
//     std::vector<int> layers;
//     std::optional<double> clip;
//   };
//   constexpr auto fields(const RunConfig*) {
//     return std::tuple(dckpt::Field("name", &RunConfig::name),
//                       dckpt::Field("layers", &RunConfig::layers),
//                       dckpt::Field("clip", &RunConfig::clip));
//   }
//   state["config"] = dckpt::to_dict(config);
//   config = dckpt::from_dict<RunConfig>(state.at("config"));
//
// Members may be bool, numbers, enumerations (as their numbers), text, paths, tensors, Values,
// other structs with fields, optionals (none if empty) and lists of these.
namespace DCKPT_API dckpt {

/// Returns a dict with the fields of a record that have names, in their order.
template <HasFields T>
Value to_dict(const T& record);

/// Returns the record of which to_dict() makes `dict`. Throws CheckpointError (mismatch) if it is
/// not a dict, if members are missing or unknown, naming them, or if one does not fit its field.
template <HasFields T>
T from_dict(const Value& dict);

namespace record_detail {

template <typename T>
concept Optional = std::same_as<T, std::optional<typename T::value_type>>;
template <typename T>
concept List = requires(T list) {
  list.push_back(*list.begin());
  requires !std::convertible_to<const T&, std::string_view>;
};

[[noreturn]] void throw_unfit(const std::string& path, const std::string& reason);
/// Throws CheckpointError (mismatch) unless `value` is a dict with just these members.
void require_members(const Value& value, const std::vector<std::string>& names,
                     const std::string& path);

/// Returns an integer that only std::uint64_t holds.
std::optional<std::uint64_t> beyond_int64(const Value& value);

template <typename T>
Value to_member(const T& member) {
  if constexpr (HasFields<T>) {
    return to_dict(member);
  } else if constexpr (Optional<T>) {
    return member ? to_member(*member) : Value();
  } else if constexpr (std::floating_point<T>) {
    return Value(static_cast<double>(member));
  } else if constexpr (List<T>) {
    ValueList items;
    for (const auto& item : member) items.push_back(to_member<typename T::value_type>(item));
    return Value::list(std::move(items));
  } else {
    return Value(member);
  }
}

/// Calls `read`, and tells which member its error is about.
template <typename Read>
auto checked(const std::string& path, const Read& read) {
  try {
    return read();
  } catch (const CheckpointError& error) {
    throw_unfit(path, error.message());
  }
}

template <typename T>
void from_fields(const Value& dict, T& record, const std::string& path);

template <typename T>
void from_member(const Value& value, T& member, const std::string& path) {
  if constexpr (HasFields<T>) {
    from_fields(value, member, path);
  } else if constexpr (Optional<T>) {
    member.reset();
    if (!value.is_none()) from_member(value, member.emplace(), path);
  } else if constexpr (std::same_as<T, Value>) {
    member = value;
  } else if constexpr (std::same_as<T, Tensor>) {
    member = checked(path, [&] { return value.as_tensor(); });
  } else if constexpr (std::same_as<T, bool>) {
    member = checked(path, [&] { return value.as_bool(); });
  } else if constexpr (std::is_enum_v<T>) {
    std::underlying_type_t<T> number{};
    from_member(value, number, path);
    member = static_cast<T>(number);
  } else if constexpr (std::integral<T>) {
    if constexpr (std::unsigned_integral<T> && sizeof(T) == 8) {
      if (const auto large = beyond_int64(value)) return static_cast<void>(member = *large);
    }
    const std::int64_t number = checked(path, [&] { return value.as_int(); });
    if (!std::in_range<T>(number))
      throw_unfit(path, "the number " + std::to_string(number) + " is out of range");
    member = static_cast<T>(number);
  } else if constexpr (std::floating_point<T>) {
    member = static_cast<T>(checked(path, [&] { return value.as_float(); }));
  } else if constexpr (std::convertible_to<const T&, std::string_view> || FilePath<T>) {
    member = checked(path, [&] { return value.as_str(); });
  } else {
    static_assert(List<T>, "this type cannot be a member of a dict");
    const ValueList items = checked(path, [&] { return value.items(); });
    member.clear();
    for (const Value& item : items) {
      typename T::value_type next{};
      from_member(item, next, path + "[" + std::to_string(member.size()) + "]");
      member.push_back(std::move(next));
    }
  }
}

template <typename T>
void from_fields(const Value& dict, T& record, const std::string& path) {
  std::vector<std::string> names;
  for_each_field<T>([&](const auto& field) {
    if (field.name != nullptr) names.emplace_back(field.name);
  });
  require_members(dict, names, path);
  for_each_field<T>([&](const auto& field) {
    if (field.name == nullptr) return;
    from_member(dict.at(field.name), record.*field.member,
                path.empty() ? field.name : path + "." + field.name);
  });
}

}  // namespace record_detail

template <HasFields T>
Value to_dict(const T& record) {
  Value dict = Value::dict();
  for_each_field<T>([&](const auto& field) {
    if (field.name != nullptr) dict[field.name] = record_detail::to_member(record.*field.member);
  });
  return dict;
}

template <HasFields T>
T from_dict(const Value& dict) {
  T record{};
  record_detail::from_fields(dict, record, "");
  return record;
}

}  // namespace dckpt
