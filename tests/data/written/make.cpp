// The training root that make.sh keeps: two ranks save iterations 10 and 20.
#include <dckpt/dist_checkpointing.h>

#include <numeric>

int main(int, char** argv) {
  const dckpt::Policy policy = dckpt::Policy::from_file(argv[2]);
  dckpt::run_ranks(2, [&](dckpt::Communicator& comm) {
    dckpt::Checkpointer checkpointer(argv[1], policy, comm);
    for (const int iteration : {10, 20}) {
      auto rows = dckpt::Tensor::zeros(dckpt::DType::kFloat32, {3, 4});
      auto* const first = rows.data<float>();
      std::iota(first, first + 12, static_cast<float>(iteration + 12 * comm.rank()));
      dckpt::StateDict state;
      state["weight"] = dckpt::ShardedTensor::from_rank_offsets(
          "decoder.weight", rows, {{.axis = 0, .rank = comm.rank(), .count = comm.size()}});
      state["args"] = dckpt::Value::dict({{"lr", 0.5}, {"name", "gpt"}});
      state["iteration"] = iteration;
      checkpointer.save(state, static_cast<std::uint64_t>(iteration));
    }
  });
}
