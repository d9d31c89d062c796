// save_with_plans DIRECTORY FLATTENED: two ranks save a checkpoint that keeps their plans;
// test_kept_plans.py describes the same state to Megatron-Core.

#include <cstdio>
#include <exception>
#include <string>

#include "dist_checkpointing/save/save.h"
#include "strategies/comm/threads.h"

namespace {

using namespace dckpt;

constexpr int kRanks = 2;

StateDict state_of(int rank, bool flattened) {
  StateDict state;
  const auto zeros = [](DType dtype, Shape shape) {
    return Tensor::zeros(dtype, std::move(shape));
  };
  state["rows"] = ShardedTensor::from_rank_offsets("rows", zeros(DType::kFloat32, {4, 6}),
                                                   {{.axis = 0, .rank = rank, .count = kRanks}});
  state["whole"] =
      ShardedTensor::whole("whole", zeros(DType::kBFloat16, {5}), {.replica_id = {0, rank}});
  state["scalar"] =
      ShardedTensor::whole("scalar", zeros(DType::kInt64, {}), {.replica_id = 1 - rank});
  for (int layer = 0; layer < 2; ++layer) {
    state["layer" + std::to_string(layer)] = ShardedTensor::from_rank_offsets(
        "layers.weight", zeros(DType::kFloat32, {3}),
        {{.axis = 0, .rank = 2 * rank + layer, .count = 2 * kRanks}}, {.prepend_axis_num = 1});
  }
  if (flattened) {
    const FlattenedRange range = rank == 0 ? FlattenedRange{0, 5} : FlattenedRange{5, 12};
    state["flattened"] = ShardedTensor::from_rank_offsets_flat(
        "flattened", zeros(DType::kFloat32, {range.end - range.begin}), {2, 6}, {}, range);
  }
  state["rng"] = ShardedObject{
      .key = "rng", .data = Value(rank), .global_shape = {kRanks}, .global_offset = {rank}};
  state["iteration"] = 7;
  return state;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s DIRECTORY none|megatron\n", argv[0]);
    return 2;
  }
  try {
    const bool flattened = std::string(argv[2]) == "megatron";
    const SaveOptions options{.flattened = FlattenedForm::kMegatron,
                              .planner = {.keep_plans = KeepPlans::kMetadata}};
    run_ranks(kRanks, [&](Communicator& comm) {
      save(state_of(comm.rank(), flattened), argv[1], options, comm);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
