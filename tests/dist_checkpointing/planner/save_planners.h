#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "configs/policy/policy.h"
#include "dist_checkpointing/open/open.h"
#include "examples/planners/planners.h"
#include "tests/dist_checkpointing/save_load.h"

namespace dckpt::testing {

/// States of several ranks that planners for saves plan.
class Planners : public SaveLoad {
 public:
  static constexpr int kRanks = 4;

 protected:
  static void SetUpTestSuite() { example::register_planners(); }

  static Tensor numbers(const Shape& shape, std::int64_t first) {
    Tensor tensor = arange(shape);
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data<float>()[i] += static_cast<float>(first);
    return tensor;
  }

  static StateDict state_of(int rank, int ranks = kRanks) {
    StateDict state = Value::dict();
    const auto rows = std::int64_t{16} / ranks;
    state["w"] = ShardedTensor::from_rank_offsets("decoder.w", numbers({rows, 4}, rank * rows * 4),
                                                  {{.axis = 0, .rank = rank, .count = ranks}});
    state["m"] =
        ShardedTensor::from_rank_offsets("optimizer.m", numbers({rows, 4}, rank * rows * 4),
                                         {{.axis = 0, .rank = rank, .count = ranks}});
    for (const char* const key : {"decoder.norm", "decoder.bias", "frozen.emb"})
      state[key] = ShardedTensor::whole(key, arange({8}), {.replica_id = rank});
    state["iteration"] = 5;
    return state;
  }

  static SaveOptions with(const std::string& planner, const std::string& more = "") {
    return Policy::from_text("version: 1\nsave: {planner: {kind: " + planner + more +
                             "}, parallel: {enabled: true}}")
        .save;
  }

  void save_with(const std::string& name, const SaveOptions& options, int ranks = kRanks) {
    run_ranks(ranks, [&](Communicator& comm) {
      save(state_of(comm.rank(), ranks), checkpoint(name), options, comm);
    });
  }

  std::vector<std::string> keys_of(const std::string& name) {
    std::vector<std::string> keys;
    const auto reader = open_checkpoint(checkpoint(name));
    for (const TensorStorageMetadata& tensor : reader->metadata().tensors)
      keys.push_back(tensor.key);
    return keys;
  }
};

}  // namespace dckpt::testing
