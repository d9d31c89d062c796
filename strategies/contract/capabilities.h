#pragma once

namespace dckpt {

/// What a strategy can do beside storing sharded tensors. A save that needs what its strategy lacks
/// is refused before anything is written.
struct Capabilities {
  bool objects = true;          ///< ShardedObjects
  bool common_state = true;     ///< values that are not sharded
  bool flattened_form = false;  ///< FlattenedForm::kMegatron: metadata with flattened_shape
  bool compat = false;          ///< other readers than its own: SaveOptions::compat
  /// All files are directly in the checkpoint, so that a manifest can list them:
  /// SaveOptions::integrity. It is written after the strategy is done.
  bool integrity = false;
  bool separation_hint = false;  ///< files of their own for some keys: SaveOptions::separation_hint

  friend bool operator==(const Capabilities&, const Capabilities&) = default;
};

}  // namespace dckpt
