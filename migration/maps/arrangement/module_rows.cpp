#include "migration/maps/arrangement/module_rows.h"

#include <set>

#include "configs/maps/key_pattern.h"

namespace dckpt {
namespace {

/// Returns the path of the module around this one, with its last dot.
std::string around(const std::string& module) {
  return module.substr(0, module.rfind('.') + 1);
}

}  // namespace

std::string kind_with(const KeyMap& map, const std::string& module) {
  std::set<std::string> kinds;
  for (const std::string& inside : {module + ".", around(module)}) {
    for (const MapRow& row : map.tensors) {
      if (row.megatron.starts_with(inside)) kinds.insert(row.layers);
    }
    if (!kinds.empty()) break;
  }
  return kinds.size() == 1 ? *kinds.begin() : std::string();
}

std::string with_steps(const KeyMap& map, const std::string& module) {
  const std::string outer = around(module);
  for (const MapRow& row : map.tensors) {
    const std::string plain = KeyPattern(row.megatron).without_steps();
    if (plain.starts_with(outer))
      return row.megatron.substr(0, outer.size() + row.megatron.size() - plain.size()) +
             module.substr(outer.size());
  }
  return module;
}

}  // namespace dckpt
