// A rank of an MPI job, alone.
#include <dckpt/mpi.h>

#include <cstdio>

int main(int argc, char** argv) {
  try {
    dckpt::mpi_communicator(MPI_COMM_WORLD);
    return 1;
  } catch (const dckpt::CheckpointError& error) {
    std::printf("%s\n", error.what());  // it says that MPI is not initialized
  }
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  const int size = dckpt::mpi_communicator(MPI_COMM_WORLD)->size();
  MPI_Finalize();
  return size == 1 ? 0 : 1;
}
