#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/state/optimizer_slots.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {
namespace torch {

/// One of the tensors in the state of a parameter.
struct StateTensor {
  const char* name;
  at::Tensor* tensor;  ///< in the state; undefined before the first step
  /// The state is shaped as the parameter, or lacks the axes that StateCut says.
  StateCut cut = StateCut::kParam;
  /// Makes the state before the first step; empty: zeros, of the type and on the device of the
  /// parameter.
  std::function<at::Tensor(const at::Tensor& param)> make{};
};

/// The parts of the state of one parameter.
struct OptimizerSlots {
  std::vector<StateTensor> tensors{};
  std::int64_t* step = nullptr;  ///< null: the optimizer counts nothing

  std::vector<std::string> names() const;
};

/// A kind of optimizer: what it keeps for each parameter, and the options of its groups. Derive
/// from it to describe an optimizer of your own (ModuleStateOptions::optimizer_kind). Functions are
/// called with options and states of the types that the optimizer has.
class OptimizerKind {
 public:
  using Options = ::torch::optim::OptimizerOptions;
  using State = ::torch::optim::OptimizerParamState;

  virtual ~OptimizerKind() = default;
  virtual const char* name() const = 0;  ///< stored; a checkpoint of another name is refused
  virtual std::unique_ptr<State> new_state() const = 0;
  /// Returns the slots that `param`, of a group with these options, has in `state`.
  virtual OptimizerSlots slots(State& state, const Options& options,
                               const at::Tensor& param) const = 0;
  virtual Value to_value(const Options& options) const = 0;
  /// Throws CheckpointError (invalid argument) for an option that is missing or of another type.
  virtual void assign(Options& options, const Value& value) const = 0;
};

}  // namespace torch
}  // namespace dckpt
