#pragma once

#include <optional>
#include <string>
#include <vector>

#include "configs/maps/key_map.h"
#include "mapping/base/finding.h"
#include "migration/maps/numbers/map_numbers.h"
#include "migration/maps/sides/mapped_keys.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// The argument with which the weights of Megatron's norms lack the 1.
inline constexpr const char* kLayerNorm1p = "apply_layernorm_1p";

/// The weights of norms that a map makes, by what it takes them to be: factors, or factors that
/// lack the 1 (apply_layernorm_1p). Norms of which the map says neither are left out.
struct NormKeys {
  std::vector<std::string> factors{};
  std::vector<std::string> without_1{};
  std::string because = "by the map";  ///< "apply_layernorm_1p is false (by the map)"
};

/// Returns the norms of `keys`, which still has its tensors.
NormKeys norms_of(const KeyMap& map, const MapNumbers& numbers, const MappedKeys& keys);

/// Refuses a map whose norms are of the other kind than those of `shipped`, the map for the model
/// type of config.json. Throws CheckpointError (unsupported).
void require_norms_like(const KeyMap& map, const MapNumbers& numbers, const KeyMap& shipped);

/// Reads the norms that a map has made and compares their values with what the map takes them to
/// be. Returns a warning if they look like the other kind. Throws CheckpointError (unsupported) if
/// all of them are 0 where factors are expected, unless all weights are 0 or apply_layernorm_1p is
/// set. Does nothing if they cannot be read.
Findings probe_norms(const CheckpointReader& mapped, const NormKeys& norms);

}  // namespace dckpt
