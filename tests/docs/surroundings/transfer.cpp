// Four ranks: two trainers with halves of the rows of one weight, two ranks of an engine with halves
// of its columns.
#include <dckpt/dist_checkpointing.h>
#include <dckpt/transfer.h>

#include <cstdio>

void SNIPPET() {
  dckpt::run_ranks(4, [](dckpt::Communicator& comm) {
    const bool trains = comm.rank() < 2;
    const std::int64_t half = comm.rank() % 2;
    const auto rows_of_weight = [&] {
      dckpt::StateDict state;
      state["weight"] = dckpt::ShardedTensor::from_rank_offsets("weight", dckpt::Tensor::zeros(dckpt::DType::kFloat32, {4, 8}), {{.axis = 0, .rank = half, .count = 2}});
      return state;
    };
    const auto columns_of_weight = [&] {
      dckpt::StateDict state;
      state["weight"] = dckpt::ShardedTensor::from_rank_offsets("weight", dckpt::Tensor::zeros(dckpt::DType::kFloat32, {8, 4}), {{.axis = 1, .rank = half, .count = 2}});
      return state;
    };
    const auto train = [](const dckpt::StateDict&) {};
    const auto serve = [](const dckpt::StateDict&) {};
    {
BLOCK
    }
  });
}
