#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mapping/base/finding.h"
#include "migration/maps/findings/dropped_copies.h"
#include "migration/maps/findings/norm_probe.h"
#include "migration/maps/numbers/map_numbers.h"
#include "migration/maps/sides/mapped_keys.h"

namespace dckpt {

/// A report of what a map did.
struct MapReport {
  std::string map;        ///< the map's family
  std::string trainer{};  ///< the trainer whose keys are on its left side; empty: Megatron
  MappedKeys keys;        ///< without tensors
  std::uint64_t tensors = 0;
  std::uint64_t dequantized = 0;      ///< weights with scales
  std::vector<AlikeKeys> dropped;     ///< of tensors and objects
  std::vector<ConfigEntry> config{};  ///< MapNumbers::config_entries(), if `keys.to` is HF's
  DroppedCopies copies{};             ///< for compare_copies()
  NormKeys norms{};                   ///< for probe_norms(); none if apply_layernorm_1p is set
  Findings findings{};                ///< all of this, for people too

  std::string left_name() const { return trainer.empty() ? "Megatron" : trainer; }
};

}  // namespace dckpt
