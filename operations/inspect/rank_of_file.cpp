#include "operations/inspect/rank_of_file.h"

#include "mapping/base/text.h"

namespace dckpt {

std::optional<int> rank_of_file(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  if (slash != std::string_view::npos) name.remove_prefix(slash + 1);
  const std::size_t start = name.rfind("__");  // a prefix may hold underscores of its own
  if (start == std::string_view::npos) return std::nullopt;
  const std::string_view rest = name.substr(start + 2);
  const auto rank = parse_u64(rest.substr(0, rest.find('_')));
  if (!rank || *rank > 10'000'000) return std::nullopt;
  return static_cast<int>(*rank);
}

}  // namespace dckpt
