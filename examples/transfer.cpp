// Four trainer ranks (tensor parallel 2 × data parallel 2) feed an inference engine of three ranks
// after every step, without storage. The ranks are threads here; in a real job they are processes
// over NCCL or Gloo, and tensors in GPU memory travel from device to device. With --plan, prints
// the plan as JSON instead, for programs that carry it out themselves.
#include <dckpt/dist_checkpointing.h>
#include <dckpt/json.h>
#include <dckpt/transfer.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <string_view>

namespace {

constexpr int kTensorParallel = 2, kTrainers = 4, kEngines = 3;
constexpr std::int64_t kLayers = 4, kRows = 12, kColumns = 8;

std::string key_of(std::int64_t layer) {
  return "layers." + std::to_string(layer) + ".weight";
}

// The value of an element after a step, so that every element can be checked.
float value_at(int step, std::int64_t layer, std::int64_t row, std::int64_t column) {
  return static_cast<float>(1000 * step + 100 * layer) +
         static_cast<float>(row * kColumns + column);
}

// Trainers hold rows: each half is on two ranks, the second of which is a replica.
dckpt::StateDict trainer_state(int rank, int step) {
  const std::int64_t tp = rank % kTensorParallel, dp = rank / kTensorParallel;
  const std::int64_t rows = kRows / kTensorParallel;
  dckpt::StateDict state;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    auto weight = dckpt::Tensor::zeros(dckpt::DType::kFloat32, {rows, kColumns});
    for (std::int64_t i = 0; i < weight.numel(); ++i)
      weight.data<float>()[i] = value_at(step, layer, tp * rows + i / kColumns, i % kColumns);
    state[key_of(layer)] = dckpt::ShardedTensor::from_rank_offsets(
        key_of(layer), weight, {{.axis = 0, .rank = tp, .count = kTensorParallel}},
        {.replica_id = dp});
  }
  return state;
}

// The engine's ranks divide the columns, which three does not divide: 3, 3 and 2 of them.
dckpt::StateDict engine_state(int rank) {
  const std::int64_t begin = rank * 3, columns = rank == 2 ? 2 : 3;
  dckpt::StateDict state;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const auto weight = dckpt::Tensor::zeros(dckpt::DType::kFloat32, {kRows, columns});
    state[key_of(layer)] =
        dckpt::ShardedTensor::from_box(key_of(layer), weight, {kRows, kColumns}, {0, begin});
  }
  return state;
}

std::int64_t wrong_elements(const dckpt::StateDict& state, int rank, int step) {
  std::int64_t wrong = 0;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const dckpt::ShardedTensor& shard = state.at(key_of(layer)).as_sharded_tensor();
    const std::int64_t columns = shard.local_shape[1];
    for (std::int64_t i = 0; i < shard.numel(); ++i)
      wrong += shard.local_data<float>()[i] !=
               value_at(step, layer, i / columns, rank * 3 + i % columns);
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) try {
  const bool only_plan = argc == 2 && std::string_view(argv[1]) == "--plan";
  if (argc > 1 && !only_plan) {
    std::fprintf(stderr, "usage: %s [--plan]\n", argv[0]);
    return 2;
  }
  std::atomic<std::int64_t> wrong = 0;
  dckpt::run_ranks(kTrainers + kEngines, [&](dckpt::Communicator& comm) {
    const bool trains = comm.rank() < kTrainers;
    const int engine = comm.rank() - kTrainers;
    dckpt::StateDict weights;  // of the engine, which keeps its memory
    if (!trains) weights = engine_state(engine);
    if (only_plan) {
      const dckpt::TransferPlan plan = dckpt::plan_transfer(
          trains ? trainer_state(comm.rank(), 0) : dckpt::StateDict(), weights, comm);
      if (comm.rank() == 0) std::fputs(dckpt::to_json(plan).c_str(), stdout);
      return;
    }
    dckpt::TransferCache cache;
    for (int step = 1; step <= 3; ++step) {
      const dckpt::StateDict trained =
          trains ? trainer_state(comm.rank(), step) : dckpt::StateDict();
      const dckpt::TransferReport report = dckpt::transfer(trained, weights, comm, cache);
      if (!trains) wrong += wrong_elements(weights, engine, step);
      if (comm.rank() == 0)
        std::printf("step %d: rank 0 sent %llu bytes, plan %s\n", step,
                    static_cast<unsigned long long>(report.bytes_sent),
                    report.plan_cached ? "reused" : "made");
    }
  });
  if (only_plan) return 0;
  std::printf("%lld elements differ\n", static_cast<long long>(wrong));
  return wrong == 0 ? 0 : 1;
} catch (const dckpt::CheckpointError& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
