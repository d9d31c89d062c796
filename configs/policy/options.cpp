#include "configs/policy/options.h"

namespace dckpt {

std::string_view to_string(Compat compat) noexcept {
  return name_of(kCompatNames, compat);
}
std::optional<Compat> parse_compat(std::string_view name) noexcept {
  return value_of(kCompatNames, name);
}
std::string_view to_string(StrictHandling strict) noexcept {
  return name_of(kStrictNames, strict);
}
std::optional<StrictHandling> parse_strict(std::string_view name) noexcept {
  return value_of(kStrictNames, name);
}

}  // namespace dckpt
