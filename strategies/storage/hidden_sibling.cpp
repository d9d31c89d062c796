#include "strategies/storage/hidden_sibling.h"

#include "mapping/base/format.h"
#include "mapping/base/storage_name.h"

namespace dckpt {

std::string to_string(const HiddenSibling& sibling) {
  return str_format(".{}.{}-{}", sibling.name, sibling.purpose, sibling.token);
}

std::optional<HiddenSibling> parse_hidden_sibling(std::string_view component) {
  static constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
  for (std::size_t dot = component.find('.', 1);
       component.starts_with('.') && dot != std::string_view::npos;
       dot = component.find('.', dot + 1)) {
    const std::size_t dash = component.find_first_not_of(kLetters, dot + 1);
    if (dot == 1 || dash == std::string_view::npos || dash == dot + 1 || component[dash] != '-' ||
        dash + 1 == component.size())
      continue;
    return HiddenSibling{std::string(component.substr(1, dot - 1)),
                         std::string(component.substr(dot + 1, dash - dot - 1)),
                         std::string(component.substr(dash + 1))};
  }
  return std::nullopt;
}

std::string hidden_sibling(const std::string& name, const std::string& purpose,
                           const std::string& token) {
  return join_name(parent_name(name), to_string(HiddenSibling{base_name(name), purpose, token}));
}

}  // namespace dckpt
