#pragma once

#include <string>
#include <vector>

#include "configs/maps/key_map.h"
#include "mapping/base/finding.h"
#include "migration/maps/sides/mapped_keys.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// Tensors of Hugging Face's that a map drops as copies of the embedding or of the output layer: a
/// head that is tied, and those that layers for multi-token prediction have of their own.
struct DroppedCopies {
  std::vector<std::string> copies{};
  std::vector<std::string> originals{};  ///< the tensors that are kept; a copy equals one of them
  bool of_megatron = true;               ///< the model that is made is Megatron's
};

/// Returns the copies that `keys`, which still has its tensors, drops of `source`.
DroppedCopies dropped_copies(const KeyMap& map, const MappedKeys& keys, const Metadata& source);

/// Reads the copies and returns a warning that names those that differ from all originals.
Findings compare_copies(const CheckpointReader& source, const DroppedCopies& dropped);

}  // namespace dckpt
