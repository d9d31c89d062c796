#pragma once

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// The abilities of a strategy besides storing sharded tensors. A save that needs a missing
/// capability is refused before anything is written.
struct Capabilities {
  bool objects = true;          ///< ShardedObjects
  bool common_state = true;     ///< values that are not sharded
  bool cut_tensors = true;      ///< tensors in several chunks; otherwise each is stored whole
  bool equal_chunks = false;    ///< all chunks of a tensor have one size, which divides it
  bool flattened_form = false;  ///< FlattenedForm::kMegatron: metadata with flattened_shape
  bool compat = false;          ///< forms for other readers: SaveOptions::compat
  /// SaveOptions::integrity: a manifest of the files, written after the strategy is done.
  bool integrity = false;
  /// Keeps files that an interrupted attempt has finished (ItemSource::written).
  bool resume = false;
  /// A file that is written last tells readers that a checkpoint is complete. Formats without one
  /// need a storage with rename.
  bool marker = true;
  bool separation_hint = false;  ///< separate files for some keys: SaveOptions::separation_hint

  friend bool operator==(const Capabilities&, const Capabilities&) = default;
};

}  // namespace dckpt
