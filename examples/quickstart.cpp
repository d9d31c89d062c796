#include <dckpt/dist_checkpointing.h>

#include <algorithm>
#include <cstdio>

int main(int argc, char** argv) {
  const std::filesystem::path directory = argc > 1 ? argv[1] : "quickstart_checkpoint";

  dckpt::run_ranks(2, [&](dckpt::Communicator& comm) {  // two ranks, here threads: each has three of the six rows of one tensor
    dckpt::Tensor rows = dckpt::Tensor::zeros(dckpt::DType::kFloat32, {3, 4});
    std::fill_n(reinterpret_cast<float*>(rows.data()), rows.numel(), 1.0F + static_cast<float>(comm.rank()));
    dckpt::StateDict state;
    state["weight"] = dckpt::ShardedTensor::from_rank_offsets("decoder.weight", rows, {{.axis = 0, .rank = comm.rank(), .count = comm.size()}});
    state["iteration"] = 1000;
    dckpt::save(state, directory, {}, comm);
  });

  dckpt::run_ranks(4, [&](dckpt::Communicator& comm) {  // four ranks: each asks for one of the four columns
    dckpt::Tensor column = dckpt::Tensor::empty(dckpt::DType::kFloat32, {6, 1});
    dckpt::StateDict state;
    state["weight"] = dckpt::ShardedTensor::from_rank_offsets("decoder.weight", column, {{.axis = 1, .rank = comm.rank(), .count = comm.size()}});
    dckpt::load(state, directory, {}, comm);  // fills `column`, adds what is not sharded
    const auto* values = reinterpret_cast<const float*>(column.data());
    std::printf("rank %d: iteration %d, column %g … %g\n", comm.rank(), static_cast<int>(state.at("iteration").as_int()), values[0], values[5]);
  });
}
