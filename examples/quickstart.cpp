#include <dckpt/dist_checkpointing.h>

#include <algorithm>
#include <cstdio>

int main(int argc, char** argv) {
  const std::filesystem::path directory = argc > 1 ? argv[1] : "quickstart_checkpoint";
  const auto shard = [](const dckpt::Tensor& part, int axis, const dckpt::Communicator& comm) {
    return dckpt::ShardedTensor::from_rank_offsets(
        "decoder.weight", part, {{.axis = axis, .rank = comm.rank(), .count = comm.size()}});
  };

  dckpt::run_ranks(2, [&](dckpt::Communicator& comm) {  // two ranks: three of the six rows each
    auto rows = dckpt::Tensor::zeros(dckpt::DType::kFloat32, {3, 4});
    std::fill_n(rows.data<float>(), 12, comm.rank() == 0 ? 1.0F : 2.0F);
    dckpt::StateDict state;
    state["weight"] = shard(rows, 0, comm);
    state["iteration"] = 1000;  // not sharded: the common state, the same on all ranks
    dckpt::save(state, directory, {}, comm);
  });

  dckpt::run_ranks(4, [&](dckpt::Communicator& comm) {  // four ranks: one of the four columns each
    const auto column = dckpt::Tensor::empty(dckpt::DType::kFloat32, {6, 1});
    dckpt::StateDict state;
    state["weight"] = shard(column, 1, comm);
    dckpt::load(state, directory, {}, comm);  // fills `column`, adds the common state
    const auto* values = column.data<const float>();
    std::printf("rank %d: iteration %d, column %g … %g\n", comm.rank(),
                static_cast<int>(state.at("iteration").as_int()), values[0], values[5]);
  });
}
