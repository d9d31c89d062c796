// The middle of a trainer of two ranks: each has half of the rows of one weight.
#include <dckpt/dist_checkpointing.h>

#include <cstdio>

void SNIPPET() {
  dckpt::run_ranks(2, [](dckpt::Communicator& comm) {
    const dckpt::Tensor weight = dckpt::Tensor::zeros(dckpt::DType::kFloat32, {4, 8});
    const auto sharded_state = [&] {
      dckpt::StateDict state;
      state["weight"] = dckpt::ShardedTensor::from_rank_offsets("weight", weight, {{.axis = 0, .rank = comm.rank(), .count = comm.size()}});
      return state;
    };
    const auto train_step = [] {};
    const auto forward_and_backward = [] {};
    const auto optimizer_step = [] {};
    dckpt::StateDict state = sharded_state();
    const std::filesystem::path directory = "SNIPPET";
    const dckpt::Policy policy;
    const std::uint64_t iterations = 3000;
    {
BLOCK
    }
  });
}
