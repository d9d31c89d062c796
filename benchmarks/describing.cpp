#include "benchmarks/describing.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include "benchmarks/stopwatch.h"
#include "mapping/state/fused_shards.h"
#include "mapping/state/optimizer_bucket.h"
#include "mapping/state/optimizer_slots.h"
#include "mapping/state/parallel_shards.h"
#include "mapping/state/tree.h"

namespace dckpt::bench {
namespace {

constexpr std::int64_t kHidden = 8;

/// Describes the parameters of `layers` layers, ten of each.
Value describe_model(const ParallelRank& rank, int layers, const Tensor& matrix,
                     const Tensor& vector) {
  Value model = Value::dict();
  for (int number = 0; number < layers; ++number) {
    const std::string name = "decoder.layers." + std::to_string(number) + ".";
    const auto add = [&](const char* part, Value shard) { model[name + part] = std::move(shard); };
    for (const char* const part : {"norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"})
      add(part, replicated(rank, name + part, vector));
    for (const char* const part : {"q.weight", "k.weight", "v.weight", "fc1.weight"})
      add(part, column_parallel(rank, name + part, matrix));
    for (const char* const part : {"proj.weight", "fc2.weight"})
      add(part, row_parallel(rank, name + part, matrix));
  }
  return model;
}

std::size_t count_leaves(const Value& tree) {
  std::size_t count = 0;
  visit_leaves(tree, [&](const Value&) { ++count; });
  return count;
}

}  // namespace

double measure_describing(Results& results) {
  const ParallelRank rank = parallel_rank({.tp = 8, .dp = 4}, 13, 32);
  const Tensor matrix = Tensor::zeros(DType::kBFloat16, {kHidden, kHidden});
  const Tensor vector = Tensor::zeros(DType::kBFloat16, {kHidden});
  double slowest = 0;
  const auto measure = [&](const char* metric, const std::function<Value()>& describe) {
    Stopwatch watch;
    const Value tree = watch(describe);
    if (count_leaves(tree) != 10'000) throw std::runtime_error(std::string(metric) + ": leaves");
    results.add(kDescribing, metric, "s", watch.seconds(), "10,000 tensors");
    slowest = std::max(slowest, watch.seconds());
  };
  measure("weights_s", [&] { return describe_model(rank, 1000, matrix, vector); });
  measure("weights_and_slots_s", [&] {  // two moments and a counter for each weight
    Value state = Value::dict();
    state["model"] = describe_model(rank, 250, matrix, vector);
    state["optimizer"] = optimizer_state(
        state["model"], [&](const std::string&, const Tensor& param) -> std::vector<OptimizerSlot> {
          const auto like = [&param](const Shape&) { return param; };
          return {{.name = "exp_avg", .tensor = like},
                  {.name = "exp_avg_sq", .tensor = like},
                  {.name = "step", .cut = StateCut::kNumber, .tensor = [](const Shape& shape) {
                     return Tensor::zeros(DType::kInt64, shape);
                   }}};
        });
    return state;
  });
  const Value params = describe_model(rank, 250, matrix, vector);
  const OptimizerBucket whole{.owned = {{0, 1000 * kHidden + 1500 * kHidden * kHidden}}};
  const Tensor flat = Tensor::zeros(DType::kFloat32, {whole.owned->end});
  measure("bucket_s", [&] {  // four states, of which the rank has all elements
    return distributed_optimizer_state(
        rank, params, {{"param", flat}, {"exp_avg", flat}, {"exp_avg_sq", flat}, {"m", flat}},
        whole);
  });
  return slowest;
}

}  // namespace dckpt::bench
