// One rank of the jobs of mpi_test: mpi_rank JOB FOLDER. Leaves what it found in FOLDER/RANK.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "conformance/communicator_conformance.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save_async.h"
#include "mapping/base/error.h"
#include "strategies/comm/mpi/communicator.h"

namespace {

using namespace std::chrono_literals;
using dckpt::Communicator;

int rank_in(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const dckpt::CheckpointError& error) {
    return std::string(dckpt::to_string(error.code())) + ": " + error.what();
  }
  return "no error";
}

std::string conformance() {
  std::string found;
  // Also among ranks that MPI numbers backwards.
  MPI_Comm reversed;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank_in(MPI_COMM_WORLD), &reversed);
  for (MPI_Comm mpi : {MPI_COMM_WORLD, reversed}) {
    const auto comm = dckpt::mpi_communicator(mpi);
    for (const std::string& problem : dckpt::check_communicator(*comm).problems)
      found += problem + "\n";
    const std::vector<dckpt::Bytes> large(static_cast<std::size_t>(comm->size()),
                                          dckpt::Bytes((std::size_t{9} << 20) + 5));
    if (comm->all_to_all(large) != large) found += "buffers of several pieces differ\n";
  }
  MPI_Comm_free(&reversed);
  return found;
}

/// Saves in the background, while MPI carries messages of the program, and loads.
std::string background_save(const std::filesystem::path& folder) {
  const auto comm = dckpt::mpi_communicator(MPI_COMM_WORLD);
  const auto rows = [&](std::int64_t value) {
    dckpt::Tensor tensor = dckpt::Tensor::empty(dckpt::DType::kInt64, {2, 3});
    std::fill_n(tensor.data<std::int64_t>(), 6, value);
    return dckpt::ShardedTensor::from_rank_offsets(
        "weight", tensor, {{.axis = 0, .rank = comm->rank(), .count = comm->size()}});
  };
  dckpt::StateDict state;
  state["weight"] = rows(comm->rank());
  {
    dckpt::AsyncSaver saver({}, *comm);
    dckpt::PendingSave pending = saver.save(state, (folder / "checkpoint").string());
    int sum = 0;
    for (int step = 0, one = 1; step < 100; ++step)
      MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    pending.wait();
  }
  state["weight"] = rows(-1);
  dckpt::load(state, (folder / "checkpoint").string(), {}, *comm);
  const auto* const value = state["weight"].as_tensor().data<const std::int64_t>();
  return value[0] == comm->rank() && value[5] == comm->rank() ? "" : "other values were loaded";
}

/// Rank 2 falls silent while the others send it more than MPI keeps for it.
std::string silence() {
  const auto comm = dckpt::mpi_communicator(MPI_COMM_WORLD, 5s);
  const auto part = comm->split(0);
  if (comm->rank() == 2) std::raise(SIGSTOP);
  std::string found = error_of([&] {
    part->all_to_all(std::vector<dckpt::Bytes>(static_cast<std::size_t>(part->size()),
                                               dckpt::Bytes(std::size_t{9} << 20)));
  });
  return found + "\nlater: " + error_of([&] { part->barrier(); });
}

std::string misuse() {
  return error_of([] { dckpt::mpi_communicator(MPI_COMM_NULL); }) + "\n" +
         error_of([] { dckpt::mpi_communicator(MPI_COMM_WORLD, 0s); });
}

void leave(const std::filesystem::path& folder, int rank, const std::string& text) {
  std::ofstream(folder / std::to_string(rank)) << text;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string job = argv[1];
  const std::filesystem::path folder = argv[2];
  if (job == "too_early") {
    leave(folder, 0, error_of([] { dckpt::mpi_communicator(MPI_COMM_WORLD); }));
    return 0;
  }
  int provided = 0;
  MPI_Init_thread(&argc, &argv, job == "single" ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE,
                  &provided);
  const int rank = rank_in(MPI_COMM_WORLD);
  std::string found;
  if (job == "conformance") found = conformance();
  if (job == "background_save") found = background_save(folder);
  if (job == "misuse") found = misuse();
  if (job == "single") found = error_of([] { dckpt::mpi_communicator(MPI_COMM_WORLD); });
  if (job == "silence") {
    found = silence();
    leave(folder, rank, found);
    // The first that ends takes the others, the silent one too, along.
    while (rank == 0 && !exists(folder / "1")) std::this_thread::sleep_for(10ms);
    while (rank == 1) std::this_thread::sleep_for(10ms);
    MPI_Abort(MPI_COMM_WORLD, 5);
  }
  if (job == "too_late") {
    const auto comm = dckpt::mpi_communicator(MPI_COMM_WORLD);
    MPI_Finalize();
    leave(folder, rank, error_of([&] { comm->barrier(); }));
    return 0;
  }
  leave(folder, rank, found);
  MPI_Finalize();
  return 0;
}
