#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/text.h"

namespace dckpt {

/// Chooses keys by shell-style globs (glob_match): those that match some `include` (all of them if it is empty) and no `exclude`.
struct KeyFilter {
  std::vector<std::string> include{};
  std::vector<std::string> exclude{};

  bool operator()(std::string_view key) const {
    const auto matches = [&](const std::string& pattern) { return glob_match(pattern, key); };
    return (include.empty() || std::ranges::any_of(include, matches)) && std::ranges::none_of(exclude, matches);
  }
};

}  // namespace dckpt
