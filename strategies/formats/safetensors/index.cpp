#include "strategies/formats/safetensors/index.h"

#include <algorithm>

#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "strategies/formats/json/json.h"

namespace dckpt {

SafetensorsIndex parse_safetensors_index(ByteView json, const std::string& file) {
  const auto fail = [&](const std::string& message) {
    throw_error(ErrorCode::kCorrupt, {.file = file}, message);
  };
  const Value document = parse_json(json, file, {kMaxSafetensorsIndex});
  const Value* const map = document.find("weight_map");
  if (map == nullptr || !map->is_dict())
    fail("the index has no 'weight_map', which says in which file each tensor is");
  if (map->size() == 0) fail("the 'weight_map' of the index is empty: it names no tensor");
  SafetensorsIndex index;
  for (const auto& entry : map->as_dict()) {
    const std::string& key = entry.first.as_str();
    if (!entry.second.is_str()) fail("the index names no file for " + quote(key));
    const std::string& name = entry.second.as_str();
    with_context({.key = key, .file = file}, [&] { name_components(name); });
    index.weight_map.emplace_back(key, name);
  }
  return index;
}

std::string write_safetensors_index(const SafetensorsIndex& index, std::uint64_t total_size) {
  auto sorted = index.weight_map;
  std::ranges::sort(sorted);
  Dict map;
  for (const auto& [key, file] : sorted) map.set(key, file);
  return to_json(Value::dict({{"metadata", Value::dict({{"total_size", total_size}})},
                              {"weight_map", std::move(map)}}),
                 2) +
         "\n";
}

}  // namespace dckpt
