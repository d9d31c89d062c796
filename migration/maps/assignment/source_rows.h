#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "migration/maps/assignment/completeness.h"
#include "migration/maps/assignment/layer_kinds.h"
#include "migration/maps/sides/map_sides.h"

namespace dckpt {

/// The tensors of a checkpoint that belong to a row.
struct RowTensors {
  std::optional<std::size_t> form{};
  std::size_t name = 0;  ///< position of the name that was seen last
  std::vector<std::map<RowNumbers, std::uint32_t>> positions{};
  bool left_out = false;  ///< MapTarget::left_out has keys of the row

  const std::uint32_t* find(std::size_t tensor, const RowNumbers& numbers) const;
};

/// The assignment of a checkpoint's tensors to rows, and what they show of the model.
struct SourceRows {
  MapSide side{};
  KeyPrefix prefix{};
  std::vector<RowTensors> rows{};  ///< same order as the map's
  LayerKinds kinds;
  std::map<std::string, std::int64_t, std::less<>> counts{};   ///< by the names below
  std::map<std::string, std::vector<std::uint32_t>> states{};  ///< of optimizers, by prefix
  std::vector<AlikeKeys> dropped{};
  std::map<std::string, bool> flags{};  ///< as rows that are there or missing show them

  const KeyPattern& pattern(std::size_t row, std::size_t tensor) const;
};

/// Assigns the tensors under the side, layout and prefix that fit most keys. Optimizer state is
/// kept apart if `target.names` is Megatron's. `state_layout` is set if the source is such state
/// for some of a model's tensors, under their names in this layout. Sets flags in `numbers` that no
/// configuration gives. Adds misfits to `completeness`. Throws CheckpointError: (mismatch) if no
/// key is known, (unsupported) beyond the limits.
SourceRows assign_rows(const KeyMap& map, MapNumbers& numbers, const Metadata& source,
                       const MapTarget& target, std::optional<MegatronLayout> state_layout,
                       Completeness& completeness);

}  // namespace dckpt
