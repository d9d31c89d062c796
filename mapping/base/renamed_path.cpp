#include "mapping/base/renamed_path.h"

#include <algorithm>
#include <cstdint>
#include <variant>
#include <vector>

#include "mapping/base/text.h"

namespace dckpt {

KeyPath renamed_path(const KeyPath& path, const std::string& name) {
  const auto has_dot = [](const PathElement& step) {
    return std::holds_alternative<std::string>(step) &&
           std::get<std::string>(step).find('.') != std::string::npos;
  };
  if (path.size() < 2 || std::ranges::any_of(path, has_dot)) return {name};
  const std::vector<std::string> parts = split(name, '.');
  KeyPath renamed(parts.begin(), parts.end());
  for (std::size_t i = 1; i <= std::min(path.size(), renamed.size()); ++i) {
    const PathElement& before = path[path.size() - i];
    if (std::holds_alternative<std::int64_t>(before) &&
        parts[parts.size() - i] == std::to_string(std::get<std::int64_t>(before)))
      renamed[renamed.size() - i] = before;
  }
  return renamed;
}

}  // namespace dckpt
