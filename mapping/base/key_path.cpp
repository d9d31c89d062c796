#include "mapping/base/key_path.h"

namespace dckpt {

std::string dotted_name(const KeyPath& path) {
  std::string name;
  for (const PathElement& element : path) {
    if (&element != &path.front()) name += '.';
    const auto* text = std::get_if<std::string>(&element);
    name += text != nullptr ? *text : std::to_string(std::get<std::int64_t>(element));
  }
  return name;
}

}  // namespace dckpt
