// dckpt-mpi: the tool as one rank of an MPI job.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <thread>

#include "dckpt/cli.h"
#include "dckpt/mpi.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/launch.h"

namespace {

int rank_in_mpi() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// Returns whether MPI has found the processes that the launcher has started.
bool are_connected(const dckpt::tool::Launch& launch) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (!launch.size || *launch.size == size) return true;
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> version{};
  int length = 0;
  MPI_Get_library_version(version.data(), &length);
  const std::string library(version.data());
  dckpt::tool::print_once(
      launch, "the launcher has started " + std::to_string(*launch.size) + " processes (" +
                  launch.variable + "), but MPI has connected " + std::to_string(size) +
                  ". dckpt-mpi uses " + library.substr(0, library.find_first_of(",\n")) +
                  ": start it with the mpirun of that MPI or with srun --mpi=pmix or --mpi=pmi2, "
                  "or build it with MPI_CXX_COMPILER of the other");
  return false;
}

/// Ends all ranks after they have lost each other, when MPI_Finalize would wait. Rank 0 has printed
/// the error; if it is gone, the next one does, which takes the others along.
void end_all(const dckpt::CheckpointError& error) {
  const int rank = rank_in_mpi();
  if (rank != 0) {
    std::this_thread::sleep_for(std::chrono::seconds(2 * std::min(rank, 5)));
    std::fprintf(stderr, "dckpt: error: %s\n", error.what());
  }
  std::fflush(stdout);
  MPI_Abort(MPI_COMM_WORLD, dckpt::tool::exit_code(error.code()));
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  const auto launch = dckpt::tool::find_launch();
  int code = dckpt::tool::kUnsupported;
  if (!launch || are_connected(*launch)) {
    try {
      const auto ranks = dckpt::mpi_communicator(MPI_COMM_WORLD);
      code = dckpt::cli_main(argc, argv, *ranks);
    } catch (const dckpt::CheckpointError& error) {
      end_all(error);
    }
  }
  std::cout.flush();  // the first process that fails after this takes the others along
  MPI_Finalize();
  return code;
}
