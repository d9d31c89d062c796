#include "benchmarks/planners.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "benchmarks/stopwatch.h"
#include "dist_checkpointing/planner/planner_checks.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/planner/resolved_source.h"
#include "dist_checkpointing/planner/save_planner.h"
#include "mapping/planning/save/messages.h"

namespace dckpt::bench {
namespace {

constexpr std::int64_t kSmall = 64;

class Derived final : public MCoreSavePlanner {};

class WithLocalPlan final : public MCoreSavePlanner {
 public:
  SavePlan create_local_plan() override { return MCoreSavePlanner::create_local_plan(); }
};

/// Times what a save requests of a registered planner of this class, on one rank and on rank 0.
template <typename Planner>
double plan_seconds(const PlanWorkload& workload, const SaveOptions& options,
                    std::span<const LocalShard> shards, std::span<const Tensor> tensors,
                    const LocalPlans& plans) {
  Planner planner;
  const StateDict state;
  const Location location("unwritten");
  Stopwatch watch;
  watch([&] {
    planner.set_up_planner({.state = state,
                            .shards = shards,
                            .tensors = tensors,
                            .objects = {},
                            .location = location,
                            .options = options,
                            .ranks = static_cast<int>(workload.ranks)});
    const SavePlan local = planner.create_local_plan();
    if (overridden_steps<Planner>().local_plan)
      check_local_plan(local, {.shards = shards, .tensors = tensors, .own_tensors = tensors.size()},
                       planner);
    const Bytes proposal = encode_plan(local);
    const GlobalPlan plan = planner.create_global_plan(plans);
    if (overridden_steps<Planner>().global_plan) validate_global_plan(plan, plans);
  });
  return watch.seconds();
}

/// A source with one small tensor.
class SmallTensors final : public ItemSource {
 public:
  Bytes object(const WriteItem&) override { return {}; }
  void tensor(const WriteItem&, const std::function<void(ByteView)>& sink) override {
    sink(bytes_);
  }

 private:
  const Bytes bytes_ = Bytes(kSmall * sizeof(float));
};

/// A planner whose resolve_tensor() returns its argument.
class Transform final : public MCoreSavePlanner {
 public:
  bool resolves(const WriteItem&) const override { return true; }
};

/// Returns the nanoseconds that resolve_tensor() adds to reading an item.
double transform_nanoseconds() {
  constexpr std::size_t kItems = 200'000;
  WriteItem item;
  item.key = "model.decoder.layers.17.mlp.experts.local_experts.3.linear_fc1.weight";
  item.properties.dtype = DType::kFloat32;
  item.size = item.chunk.sizes = {kSmall};
  item.chunk.offsets = {0};
  item.nbytes = kSmall * sizeof(float);
  const std::vector<DType> dtypes{DType::kFloat32};
  const Transform planner;
  SmallTensors source;
  ResolvedSource resolved(source, planner, dtypes, "the planner");
  std::uint64_t sum = 0;
  const auto seconds = [&](ItemSource& items) {
    Stopwatch watch;
    watch([&] {
      for (std::size_t i = 0; i < kItems; ++i)
        items.tensor(item, [&](ByteView bytes) { sum += bytes.size(); });
    });
    return watch.seconds();
  };
  const double direct = seconds(source);
  return (seconds(resolved) - direct) / kItems * 1e9;
}

}  // namespace

void measure_planners(const PlanWorkload& workload, const std::vector<Bytes>& encoded,
                      Results& results) {
  const std::vector<ByteView> views(encoded.begin(), encoded.end());
  const LocalPlans plans{std::span(views)};
  SaveOptions options;
  options.planner.kind = workload.kind;
  if (workload.kind == PlannerKind::kDcp) options.compat = Compat::kDcp;
  std::vector<LocalShard> shards = workload.shards(0);
  std::vector<Tensor> tensors;
  for (LocalShard& shard : shards) {
    auto& tensor = std::get<TensorShard>(shard);
    tensor.source = static_cast<std::uint32_t>(tensors.size());
    const Shape shape =
        tensor.range ? Shape{tensor.range->end - tensor.range->begin} : tensor.box.sizes;
    tensors.push_back(Tensor::meta(tensor.properties.dtype, shape));
  }
  std::array<double, 3> best{1e9, 1e9, 1e9};
  for (int turn = 0; turn < 5; ++turn) {
    Stopwatch rules;
    rules([&] {
      const Bytes proposal = encode_plan(plan_local_save(shards, options.flattened));
      return create_default_global_save_plan(plans, global_plan_options(options));
    });
    best[0] = std::min(best[0], rules.seconds());
    best[1] = std::min(best[1], plan_seconds<Derived>(workload, options, shards, tensors, plans));
    best[2] =
        std::min(best[2], plan_seconds<WithLocalPlan>(workload, options, shards, tensors, plans));
  }
  results.add(workload.name, "planner_builtin_s", "s", best[0],
              "rank 0: its local plan, and the global one");
  results.add(workload.name, "planner_derived_s", "s", best[1], "registered, overrides nothing");
  results.add(workload.name, "planner_local_s", "s", best[2],
              "registered, overrides create_local_plan");
  double transform = 1e9;
  for (int turn = 0; turn < 5; ++turn) transform = std::min(transform, transform_nanoseconds());
  results.add(workload.name, "planner_transform_ns", "ns", transform,
              "for an item of 256 bytes that goes through resolve_tensor()");
}

}  // namespace dckpt::bench
