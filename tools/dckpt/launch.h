#pragma once

#include <optional>
#include <string>

namespace dckpt::tool {

/// A process that a launcher (mpirun, srun) has started as one of several, by its environment. Part
/// of the programs, not of the library.
struct Launch {
  std::string variable;       ///< that says so: "OMPI_COMM_WORLD_SIZE"
  std::optional<int> size{};  ///< empty if the launcher does not say
  int rank = 0;
  bool connects = true;  ///< false: it has given the processes no way to find each other
};

/// Returns nothing for a process of its own, or with DCKPT_LAUNCHER=none. Ends the program if that
/// variable has another value.
std::optional<Launch> find_launch();

/// Prints an error once for all processes. Returns after rank 0 has had the time to print it.
void print_once(const Launch& launch, const std::string& message);

/// Replaces this program by dckpt-mpi beside it. Returns, with an exit code, only if that fails.
int become_rank(const Launch& launch, char** argv);

}  // namespace dckpt::tool
