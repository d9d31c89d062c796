#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model.h"

namespace mini {

/// Adam with its moments sharded over the data parallel ranks (ZeRO stage 1). Each rank updates the
/// elements [begin, end) of all parameters, one after the other; the ends fall inside parameters.
class ShardedAdam {
 public:
  explicit ShardedAdam(Model& model) : model_(model) {
    const auto all = static_cast<std::int64_t>(model.weights.size());
    const std::int64_t rank = model.parallel.data.rank(), size = model.parallel.data.size();
    begin = all * rank / size;
    end = all * (rank + 1) / size;
    exp_avg.resize(static_cast<std::size_t>(end - begin));
    exp_avg_sq.resize(exp_avg.size());
  }

  /// Performs update `number` (the first is 1) with the gradients of `samples` samples.
  void step(std::uint64_t number, int samples) {
    dckpt::Communicator& ranks = model_.parallel.data;
    const std::vector<Fixed> sum = ranks.all_reduce(model_.gradients, dckpt::ReduceOp::kSum);
    const auto n = static_cast<double>(number);
    const double rate = 0.003 * std::sqrt(1 - std::pow(0.99, n)) / (1 - std::pow(0.9, n));
    for (std::int64_t i = begin; i < end; ++i) {
      const double gradient = to_double(sum[i]) / samples;
      float &mean = exp_avg[i - begin], &square = exp_avg_sq[i - begin];
      mean = static_cast<float>(0.9 * mean + 0.1 * gradient);
      square = static_cast<float>(0.99 * square + 0.01 * gradient * gradient);
      model_.weights[i] -= static_cast<float>(rate * mean / (std::sqrt(double{square}) + 1e-8));
    }
    const auto* mine = reinterpret_cast<const std::byte*>(model_.weights.data() + begin);
    float* to = model_.weights.data();
    for (const dckpt::Bytes& part : ranks.all_gather({mine, exp_avg.size() * sizeof(float)})) {
      std::memcpy(to, part.data(), part.size());
      to += part.size() / sizeof(float);
    }
    std::fill(model_.gradients.begin(), model_.gradients.end(), 0);
  }

  std::int64_t begin = 0, end = 0;
  std::vector<float> exp_avg, exp_avg_sq;  ///< moments of the elements [begin, end)

 private:
  Model& model_;
};

}  // namespace mini
