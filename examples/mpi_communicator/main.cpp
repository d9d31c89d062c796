// MPI ranks save and load a checkpoint.
//
//   mpirun -n 4 mpi_communicator DIRECTORY

#include <algorithm>
#include <cstdio>

#include "dckpt/mpi.h"
#include "dckpt/testing.h"

namespace {

/// Checks that the communicator conforms, then that a saved state is loaded unchanged.
bool run(dckpt::Communicator& comm, const std::filesystem::path& directory) {
  for (const std::string& problem : dckpt::check_communicator(comm).problems) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return false;
  }
  const auto rows = [&](std::int64_t value) {
    dckpt::Tensor tensor = dckpt::Tensor::empty(dckpt::DType::kInt64, {2, 3});
    std::fill_n(tensor.data<std::int64_t>(), 6, value);
    return dckpt::ShardedTensor::from_rank_offsets(
        "weight", tensor, {{.axis = 0, .rank = comm.rank(), .count = comm.size()}});
  };
  dckpt::StateDict state;
  state["weight"] = rows(comm.rank());
  dckpt::save(state, directory, {.overwrite = true}, comm);
  state["weight"] = rows(-1);
  dckpt::load(state, directory, {}, comm);
  const auto* const value = state["weight"].as_tensor().data<const std::int64_t>();
  return value[0] == comm.rank() && value[5] == comm.rank();
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE,
                  &provided);  // background saves communicate from a thread of their own
  bool ok = false;
  try {
    const auto comm = dckpt::mpi_communicator(MPI_COMM_WORLD);
    ok = run(*comm, argc > 1 ? argv[1] : "mpi_checkpoint");
    if (ok && comm->rank() == 0) std::printf("%d ranks saved and loaded over MPI\n", comm->size());
  } catch (const dckpt::CheckpointError& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  if (!ok) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Finalize();
  return 0;
}
