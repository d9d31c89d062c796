#pragma once

#include <functional>
#include <optional>
#include <stop_token>

#include "dist_checkpointing/progress.h"
#include "mapping/state/value.h"

namespace dckpt {

/// What a trainer adds to its saves in code. Every rank passes the same, but for `progress` and
/// `cancel`.
struct SaveHooks {
  /// Applied to a copy of each rank's state (tensors are shared, not copied) before anything else:
  /// to leave things out, to rename, to wrap.
  std::function<StateDict(StateDict state)> preprocess{};
  /// Applied to a copy of each rank's common state before it is compared with rank 0's: takes out
  /// what may differ. Does not change what is saved.
  std::function<StateDict(StateDict common)> before_comparison{};
  /// Describes what the state is made of; kept in the common state, from where
  /// load_content_metadata() takes it. An empty dict is not the same as none.
  std::optional<Value> content_metadata{};
  /// While data are written: bytes of all ranks, done and in all, about twice a second, in the
  /// thread that saves. Each rank may have one or none.
  Progress progress{};
  /// A stop requested on any rank cancels the save on all: they throw CheckpointError (cancelled),
  /// and nothing is left of it. Once it has been published it is too late, and the save succeeds.
  /// It stays requested: later saves with the same token are cancelled too.
  std::stop_token cancel{};
};

}  // namespace dckpt
