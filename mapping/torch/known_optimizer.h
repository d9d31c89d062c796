#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mapping/state/value.h"

namespace dckpt::torch {

/// The parts of the state of one parameter.
struct OptimizerSlots {
  std::vector<std::pair<const char*, at::Tensor*>> tensors{};  ///< shaped as the parameter
  std::int64_t* step = nullptr;  ///< null: the optimizer counts nothing

  std::vector<std::string> names() const;
};

/// An optimizer of libtorch whose state and options are known.
class KnownOptimizer {
 public:
  using Options = ::torch::optim::OptimizerOptions;
  using State = ::torch::optim::OptimizerParamState;

  virtual ~KnownOptimizer() = default;
  virtual const char* name() const = 0;
  virtual std::unique_ptr<State> new_state() const = 0;
  /// Returns the slots that a parameter of a group with these options has.
  virtual OptimizerSlots slots(State& state, const Options& options) const = 0;
  virtual Value to_value(const Options& options) const = 0;
  /// Throws CheckpointError (invalid argument) for an option that is missing or of another type.
  virtual void assign(Options& options, const Value& value) const = 0;
};

/// Throws CheckpointError (unsupported) if the optimizer is not known.
const KnownOptimizer& known_optimizer(const ::torch::optim::Optimizer& optimizer);

/// Throws CheckpointError (mismatch) if state["optimizer"] is present and names another optimizer.
void require_same_optimizer(const ::torch::optim::Optimizer& optimizer, const Value& state);

}  // namespace dckpt::torch
