#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "configs/yaml/yaml.h"
#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"

// One description per struct, from which its YAML is read, checked, corrected ("did you mean") and
// printed.
//
//   const Schema<ParallelOptions> schema{{
//       field("enabled", &ParallelOptions::enabled, flag()),
//       field("exchange", &ParallelOptions::exchange, choice(kExchangeNames)),
//   }};

namespace DCKPT_API dckpt {
namespace config {

// Descriptions are tables of type-erased functions that take the address of a struct's member. A
// policy has some sixty fields, and templates for each of them took a compiler half a minute.

/// A function whose copies share what it has captured: types are made of types, and each use of a
/// type is a copy.
template <typename Signature>
class SharedFunction;

template <typename Result, typename... Arguments>
class SharedFunction<Result(Arguments...)> {
 public:
  SharedFunction() = default;
  template <typename Callable>
  requires(!std::same_as<Callable, SharedFunction>)
      SharedFunction(Callable callable)  // NOLINT(google-explicit-constructor): as std::function
      : target_(static_cast<Target*>(new Held<Callable>(std::move(callable)))) {}

  Result operator()(Arguments... arguments) const { return target_->call(arguments...); }
  explicit operator bool() const noexcept { return target_ != nullptr; }

 private:
  struct Target {
    Target() = default;
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;
    virtual ~Target() = default;
    virtual Result call(Arguments... arguments) const = 0;
  };
  template <typename Callable>
  struct Held final : Target {
    explicit Held(Callable held) : callable(std::move(held)) {}
    Result call(Arguments... arguments) const override { return callable(arguments...); }
    Callable callable;
  };

  std::shared_ptr<const Target> target_;
};

using AnyRead = SharedFunction<void(const YamlNode& node, const std::string& path, void* into,
                                    ConfigProblems& problems)>;
using AnyShow = SharedFunction<std::optional<YamlNode>(const void* value)>;
using AnyCheck = SharedFunction<void(const YamlNode& node, const std::string& path,
                                     const void* value, ConfigProblems& problems)>;

/// Wraps a function (node, path, T& into, problems) that reads a T.
template <typename T>
class Read {
 public:
  template <typename Callable>
  requires std::invocable<const Callable&, const YamlNode&, const std::string&, T&, ConfigProblems&>
  Read(Callable callable)  // NOLINT(google-explicit-constructor): as std::function
      : any([callable = std::move(callable)](const YamlNode& node, const std::string& path,
                                             void* into, ConfigProblems& problems) {
          callable(node, path, *static_cast<T*>(into), problems);
        }) {}
  explicit Read(AnyRead read) : any(std::move(read)) {}
  void operator()(const YamlNode& node, const std::string& path, T& into,
                  ConfigProblems& problems) const {
    any(node, path, &into, problems);
  }

  AnyRead any;
};

/// Wraps a function (const T&) that shows a T as a YamlNode, or in a field as an optional one.
template <typename T, typename Result>
class Show {
 public:
  template <typename Callable>
  requires std::invocable<const Callable&, const T&> Show(
      Callable callable)  // NOLINT(google-explicit-constructor): as std::function
      : any([callable = std::move(callable)](const void* value) -> std::optional<YamlNode> {
          return callable(*static_cast<const T*>(value));
        }) {}
  explicit Show(AnyShow show) : any(std::move(show)) {}
  Result operator()(const T& value) const {
    if constexpr (std::same_as<Result, YamlNode>)
      return *any(&value);
    else
      return any(&value);
  }

  AnyShow any;
};

/// Reads a value from a node and shows it as one. `read` leaves the value alone and reports a
/// problem, under the field's path, if the node does not fit.
template <typename T>
struct Type {
  Read<T> read;
  Show<T, YamlNode> show;
};

/// Reports "save.io.threads: found 'many', expected an integer from 1 to 1024".
void report_unfit(const YamlNode& node, const std::string& path, const std::string& expected,
                  ConfigProblems& problems);

/// The type of true and false.
Type<bool> flag();

/// The type of nonempty text.
Type<std::string> text(std::string expected);

/// The type of a size in bytes, read from a number with a unit; shown in the largest unit that
/// divides it. `most` is at most 2^53.
Type<std::uint64_t> size(std::uint64_t least, std::uint64_t most);

/// The type of "none" (0) or a whole number with a unit (ms, s, min, h), at most a year; shown in
/// the largest unit that divides it.
Type<std::chrono::milliseconds> duration();

Type<std::int64_t> integer64(std::int64_t least, std::int64_t most);

template <std::integral T>
Type<T> integer(T least, T most) {
  const Type<std::int64_t> wide =
      integer64(static_cast<std::int64_t>(least), static_cast<std::int64_t>(most));
  return {[wide](const YamlNode& node, const std::string& path, T& into, ConfigProblems& problems) {
            std::int64_t value = static_cast<std::int64_t>(into);
            wide.read(node, path, value, problems);
            into = static_cast<T>(value);
          },
          [wide](const T& value) { return wide.show(static_cast<std::int64_t>(value)); }};
}

/// Returns the position of a node's text among `names`; otherwise reports a problem that lists them
/// and suggests the nearest.
[[nodiscard]] std::optional<std::size_t> read_name(const YamlNode& node, const std::string& path,
                                                   const std::vector<std::string>& names,
                                                   ConfigProblems& problems);

template <typename Enum, std::size_t N>
Type<Enum> choice(const EnumNames<Enum, N>& names) {
  std::vector<std::string> texts;
  for (const auto& [value, name] : names) texts.emplace_back(name);
  return {
      [names, texts](const YamlNode& node, const std::string& path, Enum& into,
                     ConfigProblems& problems) {
        if (const auto position = read_name(node, path, texts, problems))
          into = names[*position].first;
      },
      [names](const Enum& value) { return YamlNode::plain(std::string(name_of(names, value))); }};
}

/// The type of a list, which replaces the default as a whole.
template <typename T>
Type<std::vector<T>> list_of(Type<T> item, std::string expected) {
  return {[item, expected = std::move(expected)](const YamlNode& node, const std::string& path,
                                                 std::vector<T>& into, ConfigProblems& problems) {
            if (node.kind != YamlNode::Kind::kList)
              return report_unfit(node, path, expected, problems);
            into.assign(node.values.size(), T{});
            for (std::size_t i = 0; i < node.values.size(); ++i)
              item.read(node.values[i], path + "[" + std::to_string(i) + "]", into[i], problems);
          },
          [item](const std::vector<T>& values) {
            std::vector<YamlNode> nodes;
            for (const T& value : values) nodes.push_back(item.show(value));
            return YamlNode::list(std::move(nodes));
          }};
}

template <typename S>
struct Field {
  std::string name;
  Read<S> read;
  Show<S, std::optional<YamlNode>> show;  ///< empty: not shown
};

/// Read and show the part of a struct that begins at `offset`.
AnyRead read_member(std::size_t offset, AnyRead read);
AnyShow show_member(std::size_t offset, AnyShow show);

template <typename S, typename T>
Field<S> field(std::string name, T S::*member, Type<std::type_identity_t<T>> type) {
  static const S example{};
  const auto offset =
      static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&(example.*member)) -
                               reinterpret_cast<const std::byte*>(&example));
  return {std::move(name), Read<S>(read_member(offset, std::move(type.read.any))),
          Show<S, std::optional<YamlNode>>(show_member(offset, std::move(type.show.any)))};
}

/// Wraps a function (node, path, const S&, problems) that checks a struct once the fields of a map
/// have been read.
template <typename S>
class Check {
 public:
  Check() = default;
  template <typename Callable>
  requires std::invocable<const Callable&, const YamlNode&, const std::string&, const S&,
                          ConfigProblems&>
  Check(Callable callable)  // NOLINT(google-explicit-constructor): as std::function
      : any([callable = std::move(callable)](const YamlNode& node, const std::string& path,
                                             const void* value, ConfigProblems& problems) {
          callable(node, path, *static_cast<const S*>(value), problems);
        }) {}

  AnyCheck any;
};

template <typename S>
struct Schema {
  std::vector<Field<S>> fields;
  Check<S> check{};
};

/// Returns the position in `names` of each key of a map. Reports a problem for a node that is not a
/// map (an empty node counts as an empty map) and for every unknown key.
[[nodiscard]] std::vector<std::optional<std::size_t>> read_keys(
    const YamlNode& node, const std::string& path, const std::vector<std::string>& names,
    ConfigProblems& problems);

struct AnyField {
  std::string name;
  AnyRead read;
  AnyShow show;
};
AnyRead read_section(std::vector<AnyField> fields, AnyCheck check);
AnyShow show_section(std::vector<AnyField> fields);

/// The type of a struct: a map of some of its fields; the others keep their defaults.
template <typename S>
Type<S> section(Schema<S> schema) {
  std::vector<AnyField> fields;
  for (Field<S>& field : schema.fields)
    fields.push_back({std::move(field.name), field.read.any, field.show.any});
  return {Read<S>(read_section(fields, schema.check.any)),
          Show<S, YamlNode>(show_section(std::move(fields)))};
}

}  // namespace config
}  // namespace dckpt
