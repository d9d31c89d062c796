#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "migration/maps/completeness.h"
#include "migration/maps/layer_kinds.h"
#include "migration/maps/map_sides.h"

namespace dckpt {

/// The tensors of a checkpoint that a row has.
struct RowTensors {
  std::optional<std::size_t> form{};
  std::size_t name = 0;  ///< the last that was seen
  std::vector<std::map<RowNumbers, std::uint32_t>> positions{};
  bool left_out = false;  ///< MapTarget::left_out has keys of the row

  const std::uint32_t* find(std::size_t tensor, const RowNumbers& numbers) const;
};

/// Which tensors of a checkpoint belong to which row, and what they show of the model.
struct SourceRows {
  MapSide side{};
  KeyPrefix prefix{};
  std::vector<RowTensors> rows{};  ///< beside the map's
  LayerKinds kinds;
  std::map<std::string, std::int64_t, std::less<>> counts{};   ///< by the names below
  std::map<std::string, std::vector<std::uint32_t>> states{};  ///< of optimizers, by prefix
  std::vector<DroppedKeys> dropped{};

  const KeyPattern& pattern(std::size_t row, std::size_t tensor) const;
};

/// The numbers of layers, of experts, and of layers for multi-token prediction in the patterns of
/// keys.
inline constexpr const char* kLayer = "l";
inline constexpr const char* kExpert = "e";
inline constexpr const char* kMtpLayer = "m";

/// By the side, layout and prefix under which most keys are known. State of an optimizer is told
/// apart if the result has `target.names`, Megatron's. `state_layout`: the source is such state,
/// for some of a model's tensors, under their names in this layout. Flags that no configuration
/// says become known in `numbers`; what does not fit goes to `completeness`. Throws CheckpointError
/// (mismatch) if no key is known, (unsupported) beyond the limits.
SourceRows assign_rows(const KeyMap& map, MapNumbers& numbers, const Metadata& source,
                       const MapTarget& target, std::optional<MegatronLayout> state_layout,
                       Completeness& completeness);

/// Whether the model has a row.
bool is_active(const MapRow& row, const MapNumbers& numbers);

}  // namespace dckpt
