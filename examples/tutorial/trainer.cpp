// The trainer of docs/tutorial.md: `trainer ITERATIONS` fits a matrix that is cut by rows over the
// processes of a job; resumes where the last run stopped.
#include <dckpt/dist_checkpointing.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr std::int64_t kRows = 12, kColumns = 4;

/// The part of a rank: some rows of the weight and of its momentum, and the bias, which every rank
/// has.
struct Model {
  Model(int rank, int size)
      : first_row(rank * kRows / size),
        rows((rank + 1) * kRows / size - first_row),
        weight(rows * kColumns),
        momentum(rows * kColumns),
        bias(kColumns) {}

  void train_step() {
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const float target = static_cast<float>(first_row * kColumns) + static_cast<float>(i);
      momentum[i] = 0.9F * momentum[i] + (weight[i] - target);
      weight[i] -= 0.05F * momentum[i];
    }
    for (float& value : bias) value += 0.1F * (1.0F - value);
  }

  std::int64_t first_row, rows;
  std::vector<float> weight, momentum, bias;
};

// No copy: `values` must outlive the tensor.
dckpt::Tensor tensor(std::vector<float>& values, const dckpt::Shape& shape) {
  return dckpt::Tensor::wrap(dckpt::DType::kFloat32, shape, values.data());
}

dckpt::StateDict sharded_state(Model& model, const dckpt::Communicator& comm) {
  const dckpt::Tensor weight = tensor(model.weight, {model.rows, kColumns});
  const dckpt::Tensor momentum = tensor(model.momentum, {model.rows, kColumns});
  const dckpt::Tensor bias = tensor(model.bias, {kColumns});
  const dckpt::Shape whole{kRows, kColumns}, my_place{model.first_row, 0};

  dckpt::StateDict state;
  state["weight"] = dckpt::ShardedTensor::from_box("model.weight", weight, whole, my_place);
  state["momentum"] =
      dckpt::ShardedTensor::from_box("optimizer.momentum", momentum, whole, my_place);
  state["bias"] = dckpt::ShardedTensor::whole("model.bias", bias, {.replica_id = comm.rank()});
  return state;
}

void train(dckpt::Communicator& comm, std::uint64_t iterations) {
  Model model(comm.rank(), comm.size());
  dckpt::Checkpointer checkpointer("run/checkpoints", dckpt::Policy::from_file("run.yaml"), comm);

  dckpt::StateDict state = sharded_state(model, comm);
  state["learning_rate"] = 0.05;
  std::uint64_t iteration = 0;
  if (const auto resumed = checkpointer.load_latest(state)) {
    iteration = resumed->iteration;
    if (comm.rank() == 0) std::printf("resumed at iteration %d\n", static_cast<int>(iteration));
  }
  while (iteration < iterations) {
    model.train_step();
    if (++iteration % 10 != 0) continue;
    checkpointer.save(state, iteration);
    if (comm.rank() == 0) {
      std::printf("iteration %d: weight[0][1] = %.6f\n", static_cast<int>(iteration),
                  model.weight[1]);
    }
  }
  checkpointer.wait();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: trainer ITERATIONS\n"), 2;
  const auto comm = dckpt::sockets_from_environment();  // RANK, WORLD_SIZE, … of the launcher
  train(*comm, std::strtoull(argv[1], nullptr, 10));
}
