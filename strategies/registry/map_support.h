#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "configs/policy/options.h"
#include "mapping/base/api.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

/// The purpose of a map: to look at a checkpoint, or to load a trainer's state from it.
enum class MapUse : std::uint8_t { kLook, kLoad };

/// Gives a checkpoint the keys of a map (`load.map`, OpenOptions::map). If `text` is empty, the map
/// is found by its name, and its text is left there unless a map of its length cannot be read back;
/// otherwise the map is read from `text`.
using MapSupport = std::function<std::unique_ptr<CheckpointReader>(
    std::unique_ptr<CheckpointReader> source, const KeyMapOptions& options, MapUse use,
    std::string& text)>;

/// Called by the library dckpt::maps, which has the maps, before any thread loads.
void register_map_support(MapSupport support);

/// Returns `source` under the keys of a map; unchanged if `options` name none. Throws
/// CheckpointError: (unsupported) if the program does not link dckpt::maps; as mapped_reader()
/// does.
std::unique_ptr<CheckpointReader> with_map(std::unique_ptr<CheckpointReader> source,
                                           const KeyMapOptions& options, MapUse use,
                                           std::string& text);

}  // namespace dckpt
