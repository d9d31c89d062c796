#pragma once

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace dckpt {

/// Two layers with buffers in between, and dropout. Initial weights are always the same.
struct Net : ::torch::nn::Module {
  explicit Net(double dropout_rate = 0) : dropout(dropout_rate) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    const at::NoGradGuard no_grad;
    double value = 0.1;
    for (at::Tensor& parameter : parameters()) {
      const at::Tensor numbers = at::arange(parameter.numel(), at::kFloat);
      parameter.copy_((numbers * (value += 0.3)).sin().view(parameter.sizes()));
    }
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor hidden = norm->forward(first->forward(input)).relu();
    return second->forward(::torch::nn::functional::dropout(
        hidden, ::torch::nn::functional::DropoutFuncOptions().p(dropout)));
  }

  double dropout;
  ::torch::nn::Linear first{4, 6};
  ::torch::nn::BatchNorm1d norm{6};
  ::torch::nn::Linear second{6, 2};
};

using MakeOptimizer = std::function<std::unique_ptr<::torch::optim::Optimizer>(Net&)>;

template <typename Optimizer, typename Options>
MakeOptimizer with(Options options) {
  return [options](Net& net) { return std::make_unique<Optimizer>(net.parameters(), options); };
}

/// The state of a training process.
struct Trainer {
  virtual ~Trainer() = default;
  explicit Trainer(const MakeOptimizer& make, double dropout_rate = 0)
      : net(dropout_rate), optimizer(make(net)) {}

  at::Tensor loss(int iteration) {
    const at::Tensor numbers = at::arange(12, at::kFloat).view({3, 4}) + iteration;
    return (net.forward(numbers.sin()) - numbers.slice(1, 0, 2).cos()).square().sum();
  }
  /// Returns the loss before the step numbered `iteration`.
  virtual double step(int iteration) {
    optimizer->zero_grad();
    const at::Tensor value = loss(iteration);
    value.backward();
    optimizer->step();
    return value.item<double>();
  }
  std::vector<double> steps(int first, int count) {
    std::vector<double> losses;
    for (int i = 0; i < count; ++i) losses.push_back(step(first + i));
    return losses;
  }

  Net net;
  std::unique_ptr<::torch::optim::Optimizer> optimizer;
};

}  // namespace dckpt
