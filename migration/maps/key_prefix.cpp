#include "migration/maps/key_prefix.h"

namespace dckpt {

std::optional<std::string> KeyPrefix::key(const std::string& stored_key) const {
  if (stored_key.starts_with(stored)) return of_map + stored_key.substr(stored.size());
  if (of_map.empty() || stored_key.starts_with(of_map)) return std::nullopt;
  return stored_key;
}

std::string KeyPrefix::stored_key(const std::string& key) const {
  return key.starts_with(of_map) ? stored + key.substr(of_map.size()) : key;
}

}  // namespace dckpt
