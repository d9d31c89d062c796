#include "migration/registration/register_maps.h"

#include <optional>
#include <string>
#include <utility>

#include "configs/maps/key_map.h"
#include "configs/yaml/yaml.h"
#include "migration/maps/mapped_reader.h"
#include "strategies/registry/map_support.h"

namespace dckpt {
namespace {

/// Returns the key map that `options` name, including all maps that it extends; none if the
/// checkpoint decides.
std::optional<KeyMap> find_map(const KeyMapOptions& options, std::string& text) {
  if (options.name == kAutoMap) return std::nullopt;
  if (!text.empty()) return KeyMap::from_text(text, options.name);
  std::optional<KeyMap> map = KeyMap::find(options.name);
  if (std::string all = to_yaml(*map); all.size() <= kMaxYamlBytes) text = std::move(all);
  return map;
}

std::unique_ptr<CheckpointReader> apply_map(std::unique_ptr<CheckpointReader> source,
                                            const KeyMapOptions& options, MapUse use,
                                            std::string& text) {
  const std::optional<KeyMap> map = find_map(options, text);
  MapContext context{.map = map ? &*map : nullptr};
  if (use == MapUse::kLoad) context.to_model_folder = false;
  return mapped_reader(std::move(source), options, nullptr, std::move(context));
}

}  // namespace

void register_maps() {
  register_map_support(apply_map);
}

}  // namespace dckpt

// Linking dckpt::maps asks for this symbol, and thereby for what registers the maps.
extern "C" const bool dckpt_maps_are_linked = (dckpt::register_maps(), true);
