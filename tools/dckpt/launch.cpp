#include "tools/dckpt/launch.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>

#include "tools/dckpt/grammar/exit_code.h"

namespace dckpt::tool {
namespace {

std::optional<int> number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  int number = 0;
  const char* const end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, number);
  return error == std::errc() && at == end && at != text ? std::optional(number) : std::nullopt;
}

/// The variables that a launcher sets. An mpirun inside of a SLURM job comes first, since srun
/// starts only its daemons; srun comes last, where it sets no others that connect the processes.
struct Variables {
  const char* size;
  const char* rank;
  bool connects = true;
};
constexpr Variables kLaunchers[] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},  // Open MPI
                                    {"PMI_SIZE", "PMI_RANK"},  // MPICH, Intel MPI, srun --mpi=pmi2
                                    {"SLURM_STEP_NUM_TASKS", "PMIX_RANK"},  // srun --mpi=pmix
                                    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", false}};

}  // namespace

std::optional<Launch> find_launch() {
  const char* const variable = std::getenv("DCKPT_LAUNCHER");
  const std::string_view choice = variable == nullptr ? "" : variable;
  if (choice == "none") return std::nullopt;
  if (!choice.empty()) {
    std::fputs("dckpt: error: DCKPT_LAUNCHER is neither 'none' nor empty\n", stderr);
    std::exit(kUsage);
  }
  for (const auto& [size, rank, connects] : kLaunchers) {
    const std::optional<int> processes = number_in(size);
    const std::optional<int> own = number_in(rank);
    if (!processes || !own) continue;
    return *processes > 1 ? std::optional(Launch{size, processes, *own, connects}) : std::nullopt;
  }
  if (const std::optional<int> rank = number_in("PMIX_RANK")) return Launch{"PMIX_RANK", {}, *rank};
  return std::nullopt;
}

void print_once(const Launch& launch, const std::string& message) {
  if (launch.rank == 0) {
    std::fprintf(stderr, "dckpt: error: %s\n", message.c_str());
  } else {  // a launcher ends all as soon as one fails, rank 0 perhaps before it has printed
    std::this_thread::sleep_for(std::chrono::seconds(2));
  }
}

int become_rank(const Launch& launch, char** argv) {
  if (!launch.connects) {
    print_once(launch,
               "srun has started " + std::to_string(*launch.size) +
                   " processes and connects them with nothing: use srun --mpi=pmix (Open MPI) or "
                   "srun --mpi=pmi2 (MPICH), or set DCKPT_LAUNCHER=none, with which each process "
                   "does all the work");
    return kUnsupported;
  }
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (self.parent_path() / "dckpt-mpi").string();
  execv(program.c_str(), argv);
  print_once(launch, "this is one of several processes (" + launch.variable +
                         "), and they cannot share the work: " + program + ": " +
                         std::strerror(errno) +
                         ". Build dckpt where MPI is found, start a single process, or set "
                         "DCKPT_LAUNCHER=none, with which each process does all the work");
  return kUnsupported;
}

}  // namespace dckpt::tool
