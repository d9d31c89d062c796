#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mapping/state/sharded_tensor.h"

namespace dckpt::torch {

/// A parameter of the module, or some of its elements, in a parameter of the optimizer.
struct ParamFragment {
  std::string name;
  at::Tensor param;  ///< the module's
  /// Elements of the flattened parameter, if the optimizer has a piece of the module's memory.
  std::optional<FlattenedRange> range{};
  std::int64_t offset = 0;  ///< of the first of them in the optimizer's parameter
};

struct OptimizerParam {
  at::Tensor tensor;
  std::size_t group = 0;
  std::vector<ParamFragment> fragments;

  bool is_whole() const { return !fragments.front().range; }
};

/// Returns the optimizer's parameters with elements, in its order. With `distributed`, they may be
/// pieces of the module's memory. Throws CheckpointError (invalid argument) if one is not of the
/// module.
std::vector<OptimizerParam> optimizer_params(const ::torch::nn::Module& module,
                                             const ::torch::optim::Optimizer& optimizer,
                                             bool distributed);

}  // namespace dckpt::torch
