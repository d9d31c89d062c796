#pragma once

#include <functional>
#include <stop_token>

#include "dist_checkpointing/progress.h"
#include "mapping/base/api.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

/// What a trainer adds to a load in code. Every rank passes the same `preprocess`; the others are
/// each rank's own.
struct LoadHooks {
  /// Applied first to the caller's tree, which becomes what it returns, for example to leave out,
  /// rename or wrap entries. Tensors are shared, not copied.
  std::function<StateDict(StateDict state)> preprocess{};
  /// Called while tensors are read, from any thread, one call at a time, with the bytes of this
  /// rank's tensors: those that have arrived, and all. If it throws, the load fails with that.
  Progress progress{};
  /// A stop requested on any rank cancels the load on all: they throw CheckpointError (cancelled),
  /// and tensors that were being filled in place are partly filled. Once the state has been put
  /// together, the request has no effect.
  std::stop_token cancel{};
};

}  // namespace dckpt
