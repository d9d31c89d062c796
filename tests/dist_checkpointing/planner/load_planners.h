#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "configs/policy/policy.h"
#include "dist_checkpointing/planner/load_planner.h"
#include "examples/planners/load_planners.h"
#include "tests/dist_checkpointing/save_load.h"

namespace dckpt::testing {

/// States of several ranks that planners for loads plan.
class LoadPlanners : public SaveLoad {
 public:
  static constexpr int kRanks = 4;

 protected:
  static void SetUpTestSuite() { example::register_load_planners(); }

  /// Returns rows [rank, rank + 1) of `ranks` of a tensor of numbers in sixteenths.
  static Tensor part(std::int64_t rows, std::int64_t first_row, float value = 1) {
    Tensor tensor = Tensor::empty(DType::kFloat32, {rows, 4});
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data<float>()[i] = value * static_cast<float>(first_row * 4 + i) / 64;
    return tensor;
  }
  static ShardedTensor rows_of(const std::string& key, std::int64_t extent, int rank, int ranks,
                               float value) {
    const std::int64_t begin = extent * rank / ranks;
    const std::int64_t end = extent * (rank + 1) / ranks;
    return ShardedTensor::from_box(key, part(end - begin, begin, value), {extent, 4}, {begin, 0});
  }
  /// `value` is a factor: 0 for a state to load into.
  static StateDict state_of(int rank, int ranks, float value) {
    StateDict state = Value::dict();
    state["w"] = rows_of("decoder.w", 13, rank, ranks, value);
    state["m"] = rows_of("optimizer.m", 13, rank, ranks, value);
    state["norm"] = ShardedTensor::whole("decoder.norm", part(2, 0, value), {.replica_id = rank});
    state["rng"] =
        ShardedObject{.key = "rng", .data = Value(7), .replica_id = rank, .has_data = true};
    state["step"] = 5;
    return state;
  }
  static Policy with(const std::string& save, const std::string& load) {
    return Policy::from_text("version: 1\nsave: {" + save + "}\nload: {" + load + "}");
  }
  void save_state(const SaveOptions& options = {}) {
    save_on(
        kRanks, [](int rank) { return state_of(rank, kRanks, 1); }, options);
  }
  /// Loads on this many ranks and passes each rank's state to `look`.
  void load_on(int ranks, const LoadOptions& options,
               const std::function<void(int rank, const StateDict& state)>& look,
               const LoadHooks& hooks = {}) {
    run_ranks(ranks, [&](Communicator& comm) {
      StateDict state = state_of(comm.rank(), ranks, 0);
      load(state, checkpoint(), options, comm, hooks);
      look(comm.rank(), state);
    });
  }
};

/// A planner that knows its rank.
class PlannerOfRank : public MCoreLoadPlanner {
 public:
  void set_up_planner(const LoadSetup& setup) override {
    MCoreLoadPlanner::set_up_planner(setup);
    rank_ = setup.rank;
  }

 protected:
  int rank_ = 0;
};

}  // namespace dckpt::testing
