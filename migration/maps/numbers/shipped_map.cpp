#include "migration/maps/numbers/shipped_map.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "migration/maps/numbers/map_numbers.h"

namespace dckpt {

namespace {

/// Returns the names of a model in its config.json: its type, and its classes.
std::vector<std::string> names_of_model(const Value& config) {
  std::vector<std::string> names;
  const auto add = [&](const Value* name) {
    if (name != nullptr && name->is_str()) names.push_back(name->as_str());
  };
  add(config.find("model_type"));
  const Value* const architectures = config.find("architectures");
  if (architectures != nullptr && architectures->is_list()) {
    for (const Value& name : architectures->items()) add(&name);
  }
  return names;
}

}  // namespace

bool is_map_of(const KeyMap& map, const Value& config) {
  return std::ranges::any_of(names_of_model(config), [&](const std::string& name) {
    return std::ranges::find(map.model_types, name) != map.model_types.end() ||
           std::ranges::find(map.architectures, name) != map.architectures.end();
  });
}

std::optional<KeyMap> shipped_map(const Value& config) {
  const std::vector<std::string> names = names_of_model(config);
  for (const ShippedPolicy& shipped : shipped_maps()) {
    if (std::ranges::none_of(names, [&](const std::string& name) {
          return shipped.yaml.find(name) != shipped.yaml.npos;
        }))
      continue;  // not worth parsing
    KeyMap map = KeyMap::from_text(shipped.yaml, std::string(shipped.name) + ".yaml");
    if (is_map_of(map, config)) return map;
  }
  return std::nullopt;
}

std::optional<KeyMap> shipped_map_of_text(const Value& config) {
  auto map = shipped_map(config);
  const Value* const text = config.find(kHfTextConfig);
  return map || text == nullptr ? std::move(map) : shipped_map(*text);
}

}  // namespace dckpt
