// gloo_rank save|load DIRECTORY: one process of a job. Each rank has one row when saving, one
// column when loading.
#include <algorithm>
#include <cstdio>
#include <string>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "strategies/comm/c10d/process_group.h"

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  const bool saving = std::string(argv[1]) == "save";
  const auto comm = dckpt::gloo_from_environment(std::chrono::seconds(60));
  const int rank = comm->rank();
  const dckpt::Shape shape = saving ? dckpt::Shape{1, 4} : dckpt::Shape{2, 1};
  dckpt::Tensor mine = dckpt::Tensor::zeros(dckpt::DType::kInt32, shape);
  auto* values = reinterpret_cast<std::int32_t*>(mine.data());
  dckpt::StateDict state;
  state["weight"] = dckpt::ShardedTensor::from_rank_offsets(
      "weight", mine, {{.axis = saving ? 0 : 1, .rank = rank, .count = comm->size()}});
  if (saving) {
    for (int column = 0; column < 4; ++column) values[column] = 10 * rank + column;
    state["iteration"] = 7;
    dckpt::save(state, argv[2], {}, *comm);
    return 0;
  }
  dckpt::load(state, argv[2], {}, *comm);
  return values[0] == rank && values[1] == 10 + rank && state.at("iteration").as_int() == 7 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 3;
}
