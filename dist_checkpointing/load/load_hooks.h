#pragma once

#include <functional>
#include <stop_token>
#include <string>

#include "mapping/base/api.h"
#include "mapping/base/phase.h"
#include "mapping/base/progress.h"
#include "mapping/state/tensor.h"
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
  /// Called when a tensor that this rank asks for by a key, or by its path in a plain DCP
  /// directory, has all its elements, from any thread, one call at a time: the trainer may use it
  /// while others are being read. `key` is the one that is looked for. Tensors of the common state
  /// are not told. Each is told once, those that ranks exchange (load.parallel) at the end. Checks
  /// that need all of the checkpoint may still fail the load. If it throws, the load fails with
  /// that.
  std::function<void(const std::string& key, const Tensor& tensor)> tensor_ready{};
  /// Told of the phases of this rank's part of the load, in place of or beside set_phase_sink().
  PhaseSink phases{};
  /// A stop requested on any rank cancels the load on all: they throw CheckpointError (cancelled),
  /// and tensors that were being filled in place are partly filled. Once the state has been put
  /// together, the request has no effect.
  std::stop_token cancel{};
};

}  // namespace dckpt
