#include "migration/maps/sides/key_prefix.h"

#include <algorithm>
#include <utility>

namespace dckpt {

std::optional<std::string> KeyPrefix::key(const std::string& stored_key) const {
  for (const std::string& tower : towers) {
    if (stored_key.starts_with(of_towers + tower)) return stored_key.substr(of_towers.size());
  }
  if (stored_key.starts_with(stored)) return of_map + stored_key.substr(stored.size());
  if (of_map.empty() || stored_key.starts_with(of_map)) return std::nullopt;
  return stored_key;
}

std::string KeyPrefix::stored_key(const std::string& key) const {
  if (std::ranges::any_of(towers, [&](const auto& tower) { return key.starts_with(tower); }))
    return of_towers + key;
  return key.starts_with(of_map) ? stored + key.substr(of_map.size()) : key;
}

KeyPrefix text_prefix(const KeyMap& map, std::string stored, std::string of_map) {
  const bool is_behind_model = stored == map.hf_prefix + kTextPrefix;
  return {.stored = std::move(stored),
          .of_map = std::move(of_map),
          .towers = map.towers.keys,
          .of_towers = is_behind_model ? map.hf_prefix : std::string()};
}

}  // namespace dckpt
