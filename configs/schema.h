#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "configs/yaml.h"
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

/// A function whose copies share what it has captured: types are made of types, and each use of one
/// is a copy.
template <typename Signature>
class SharedFunction;

template <typename Result, typename... Arguments>
class SharedFunction<Result(Arguments...)> {
 public:
  template <typename Callable>
  requires(!std::same_as<Callable, SharedFunction>)
      SharedFunction(Callable callable)  // NOLINT(google-explicit-constructor): as std::function
      : function_(
            std::make_shared<const std::function<Result(Arguments...)>>(std::move(callable))) {}

  Result operator()(Arguments... arguments) const {
    return (*function_)(std::forward<Arguments>(arguments)...);
  }

 private:
  std::shared_ptr<const std::function<Result(Arguments...)>> function_;
};

/// How a value is read from a node and shown as one. `read` leaves the value alone and reports a
/// problem, under the field's path, if the node does not fit.
template <typename T>
struct Type {
  SharedFunction<void(const YamlNode& node, const std::string& path, T& into,
                      ConfigProblems& problems)>
      read;
  SharedFunction<YamlNode(const T& value)> show;
};

/// "save.io.threads: found 'many', expected an integer from 1 to 1024"
void report_unfit(const YamlNode& node, const std::string& path, const std::string& expected,
                  ConfigProblems& problems);

/// true or false
Type<bool> flag();

/// Any text but an empty one.
Type<std::string> text(std::string expected);

/// Bytes, from a number with a unit; shown in the largest unit that divides them. `most` is at most
/// 2^53.
Type<std::uint64_t> size(std::uint64_t least, std::uint64_t most);

/// none, or a whole number with a unit (ms, s, min, h), at most a year; shown in the largest unit
/// that divides it. None is 0.
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

/// The position of a node's text among `names`; reports a problem that lists them and suggests the
/// nearest.
std::optional<std::size_t> read_name(const YamlNode& node, const std::string& path,
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

/// A list replaces the default as a whole.
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
  SharedFunction<void(const YamlNode&, const std::string& path, S&, ConfigProblems&)> read;
  SharedFunction<std::optional<YamlNode>(const S&)> show;  ///< empty: not shown
};

template <typename S, typename T>
Field<S> field(std::string name, T S::*member, Type<std::type_identity_t<T>> type) {
  return {
      std::move(name),
      [member, type](const YamlNode& node, const std::string& path, S& into,
                     ConfigProblems& problems) { type.read(node, path, into.*member, problems); },
      [member, type](const S& value) -> std::optional<YamlNode> {
        return type.show(value.*member);
      }};
}

template <typename S>
struct Schema {
  std::vector<Field<S>> fields;
  /// What must hold of the whole, once the fields of a map have been read.
  std::function<void(const YamlNode&, const std::string& path, const S&, ConfigProblems&)> check{};
};

/// Which of `names` each key of a map is; reports a problem for a node that is not a map (an empty
/// node counts as an empty map) and for every unknown key.
std::vector<std::optional<std::size_t>> read_keys(const YamlNode& node, const std::string& path,
                                                  const std::vector<std::string>& names,
                                                  ConfigProblems& problems);

/// A struct: a map of some of its fields; the others keep their defaults.
template <typename S>
Type<S> section(Schema<S> schema) {
  std::vector<std::string> names;
  for (const Field<S>& field : schema.fields) names.push_back(field.name);
  return {[schema, names](const YamlNode& node, const std::string& path, S& into,
                          ConfigProblems& problems) {
            const auto positions = read_keys(node, path, names, problems);
            for (std::size_t i = 0; i < positions.size(); ++i) {
              if (!positions[i] || node.values[i].kind == YamlNode::Kind::kRefused) continue;
              const Field<S>& field = schema.fields[*positions[i]];
              field.read(node.values[i], path.empty() ? field.name : path + "." + field.name, into,
                         problems);
            }
            if (schema.check && node.kind == YamlNode::Kind::kMap)
              schema.check(node, path, into, problems);
          },
          [schema](const S& value) {
            YamlNode map;
            map.kind = YamlNode::Kind::kMap;
            for (const Field<S>& field : schema.fields) {
              std::optional<YamlNode> shown = field.show(value);
              if (!shown) continue;
              map.keys.push_back(YamlNode::plain(field.name));
              map.values.push_back(std::move(*shown));
            }
            return map;
          }};
}

}  // namespace config
}  // namespace dckpt
