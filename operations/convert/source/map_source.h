#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/open/key_filter.h"
#include "migration/maps/mapped_reader.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// Opens the checkpoint that a map is applied to.
using OpenSource = std::function<std::unique_ptr<CheckpointReader>()>;

/// A source, its map, and the selection; patterns name keys on either side of the map.
struct MapRequest {
  OpenSource open{};
  KeyMapOptions map{};
  KeyFilter keys{};
  std::shared_ptr<const Storage> model_files{};
  std::optional<KeyNames> to{};           ///< MapContext::to
  std::optional<bool> to_model_folder{};  ///< MapContext::to_model_folder

  /// `left_out`: MapContext::left_out.
  MapContext context(std::vector<std::string> left_out) const {
    return {.model_files = model_files.get(),
            .left_out = std::move(left_out),
            .to = to,
            .to_model_folder = to_model_folder};
  }
};

/// A source under the keys that a map gives it.
struct MappedSource {
  std::unique_ptr<CheckpointReader> reader{};
  MapReport report{};
  KeyFilter before{};                       ///< selection before the map
  KeyFilter behind{};                       ///< patterns left for the map's result
  std::vector<std::string> gone_tensors{};  ///< keys that `before` has left out
  std::vector<std::string> gone_objects{};
  Metadata source_keys{};  ///< only the keys of the source; none without patterns
};

/// Opens the source behind the map. Leaves out keys that `exclude` matches before the map sees
/// them. `include` selects among the keys of the result; patterns that do not match there, or in a
/// source that the map does not take as a whole, select before the map. Throws as mapped_reader()
/// does; the error also names patterns that match no key of the source.
MappedSource map_source(const MapRequest& request);

/// Returns the same selection through the map and back.
RoundTrip round_trip_of(const MapRequest& request, const MappedSource& source);

/// Returns a reader of the tensors and objects of `source` that `keys` selects, beside its common
/// state. Throws as select_contents() does.
std::unique_ptr<CheckpointReader> chosen_reader(std::unique_ptr<CheckpointReader> source,
                                                const KeyFilter& keys);

}  // namespace dckpt
