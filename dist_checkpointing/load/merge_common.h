#pragma once

#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/load/load.h"
#include "mapping/base/key_path.h"
#include "mapping/state/value.h"

namespace dckpt {

struct MergedCommon {
  Value state;
  std::vector<KeyPath> kept;             ///< the caller's plain values that are not stored
  std::vector<ReplacedTensor> replaced;  ///< the caller's tensors whose memory cannot be filled
  std::vector<CastTensor> casts;         ///< tensors that were filled with converted elements
};

/// Merges the loaded common state into the caller's tree, whose sharded and local leaves stay in
/// place. Stored values replace the caller's, and a plain tensor in CPU memory of the same shape
/// and dtype (with `cast`, of a dtype that elements can be converted to) is filled in place; a list
/// without such leaves is replaced as a whole; in a list with such leaves, the stored items replace
/// its other items in order. Plain values that are not stored are kept. Throws CheckpointError
/// (mismatch) naming the path if a plain value is stored in place of a sharded leaf, if a list with
/// sharded leaves has a different number of other items than stored, or if a tensor to fill cannot
/// be loaded into (unfit_to_load_into).
MergedCommon merge_common(Value state, const Value& common, Cast cast = Cast::kForbid);

}  // namespace dckpt
