#pragma once

#include <vector>

#include "mapping/base/key_path.h"
#include "mapping/state/value.h"

namespace dckpt {

struct MergedCommon {
  Value state;
  std::vector<KeyPath> kept;  ///< plain values of the caller for which nothing is stored
};

/// Puts the common state that was loaded into the caller's tree, whose sharded and local leaves
/// stay where they are. Stored values replace the caller's, and a plain tensor in CPU memory of the
/// same dtype and shape is filled in place; a list without such leaves is replaced as a whole, in
/// one with them the stored items take the places of its other items, in order. Plain values that
/// are not stored are kept. Throws CheckpointError (mismatch) naming the path where a plain value
/// is stored in place of a sharded leaf, or a list with sharded leaves does not have as many others
/// as are stored.
MergedCommon merge_common(Value state, const Value& common);

}  // namespace dckpt
