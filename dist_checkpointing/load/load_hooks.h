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

/// Callbacks of a trainer for a load. Every rank passes the same `preprocess`; the others may
/// differ between ranks.
struct LoadHooks {
  /// Applied first to the caller's tree, which becomes what it returns, for example to leave out,
  /// rename or wrap entries. Tensors are shared, not copied.
  std::function<StateDict(StateDict state)> preprocess{};
  /// Called while tensors are read, from any thread, one call at a time, with the bytes of this
  /// rank's tensors: those that have arrived, and all. If it throws, the load fails with its error.
  Progress progress{};
  /// Called when all elements of a tensor that this rank requests by key, or by its path in a plain
  /// DCP directory, have arrived, from any thread, one call at a time. The trainer may use the
  /// tensor while others are being read. `key` is the requested key. Tensors of the common state
  /// are not reported. Each tensor is reported once, those that ranks exchange (load.parallel) at
  /// the end. Checks that need all of the checkpoint may still fail the load. If it throws, the
  /// load fails with its error.
  std::function<void(const std::string& key, const Tensor& tensor)> tensor_ready{};
  /// Receives the phases of this rank's part of the load, in place of or beside set_phase_sink().
  PhaseSink phases{};
  /// A stop requested on any rank cancels the load on all: they throw CheckpointError (cancelled),
  /// and tensors that were being filled in place are partly filled. Once the state has been put
  /// together, the request has no effect.
  std::stop_token cancel{};
};

}  // namespace dckpt
