#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "configs/yaml/schema.h"

namespace dckpt::config {

// Parts that the fields of maps share.

/// Returns whether the text consists of letters, digits and underscores, and has some.
bool is_word(std::string_view text);
Type<std::string> word(const std::string& expected);

/// The type of a pattern of keys (key_pattern.h).
Type<std::string> pattern();

/// The type of one item or a list; shown as a list unless there is one item.
template <typename T>
Type<std::vector<T>> one_or_more(Type<T> item, const std::string& expected) {
  const Type<std::vector<T>> list = list_of(item, expected);
  return {[item, list](const YamlNode& node, const std::string& path, std::vector<T>& into,
                       ConfigProblems& problems) {
            if (node.kind == YamlNode::Kind::kList) return list.read(node, path, into, problems);
            into.assign(1, T{});
            item.read(node, path, into.front(), problems);
          },
          [item, list](const std::vector<T>& values) {
            return values.size() == 1 ? item.show(values.front()) : list.show(values);
          }};
}

/// A field that is shown only if it differs from its type's default.
template <typename S, typename T>
Field<S> optional_field(std::string name, T S::*member, Type<std::type_identity_t<T>> type) {
  Field<S> result = field(std::move(name), member, type);
  result.show = [member, type](const S& value) -> std::optional<YamlNode> {
    if (value.*member == T{}) return std::nullopt;
    return type.show(value.*member);
  };
  return result;
}

}  // namespace dckpt::config
