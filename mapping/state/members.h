#pragma once

#include <algorithm>
#include <cstddef>

#include "mapping/state/value.h"

namespace dckpt {

/// Returns whether two values are dicts, whose members correspond by key, or lists or tuples, where
/// they do by position.
inline bool have_members(const Value& a, const Value& b) {
  return a.kind() == b.kind() && (a.is_dict() || a.is_sequence());
}

/// Calls visit(key, in_a, in_b) for each member of two dicts, first for those of `a`; a pointer is
/// null on the side that lacks it. Stops and returns false once `visit` returns false.
template <typename Visit>
bool for_each_member(const Dict& a, const Dict& b, const Visit& visit) {
  std::size_t shared = 0;
  for (const auto& [key, value] : a) {
    const Value* const other = b.find(key);
    if (other != nullptr) ++shared;
    if (!visit(key, &value, other)) return false;
  }
  return shared == b.size() || std::ranges::all_of(b, [&](const Dict::Item& item) {
           return a.find(item.first) != nullptr || visit(item.first, nullptr, &item.second);
         });
}

/// Does the same for lists, with positions as keys.
template <typename Visit>
bool for_each_member(const ValueList& a, const ValueList& b, const Visit& visit) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (!visit(Value(i), i < a.size() ? &a[i] : nullptr, i < b.size() ? &b[i] : nullptr))
      return false;
  }
  return true;
}

/// Does the same for values that have_members().
template <typename Visit>
bool for_each_member(const Value& a, const Value& b, const Visit& visit) {
  return a.is_dict() ? for_each_member(a.as_dict(), b.as_dict(), visit)
                     : for_each_member(a.items(), b.items(), visit);
}

}  // namespace dckpt
