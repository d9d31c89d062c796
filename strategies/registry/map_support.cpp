#include "strategies/registry/map_support.h"

#include <utility>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

// Never destroyed, because threads may outlive static destruction.
MapSupport& registered() {
  static auto* const instance = new MapSupport;
  return *instance;
}

}  // namespace

void register_map_support(MapSupport support) {
  registered() = std::move(support);
}

std::unique_ptr<CheckpointReader> with_map(std::unique_ptr<CheckpointReader> source,
                                           const KeyMapOptions& options, MapUse use,
                                           std::string& text) {
  if (options.name.empty()) return source;
  if (!registered())
    throw_error(ErrorCode::kUnsupported,
                "the map {} needs dckpt::maps, which this program does not "
                "link; link it, or leave out load.map",
                quote(options.name));
  return registered()(std::move(source), options, use, text);
}

}  // namespace dckpt
