#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/tools/run_tool.h"

namespace dckpt::testing {

/// An MPI of this machine: how it starts ranks, and the programs that were built with it.
struct Mpi {
  std::string name;
  std::string launcher{};  ///< empty: it is missing
  std::string rank{};      ///< mpi_rank
  std::string tool{};      ///< dckpt-mpi

  friend void PrintTo(const Mpi& mpi, std::ostream* out) { *out << mpi.name; }
};

inline std::vector<Mpi> all_mpis() {
  Mpi openmpi{"openmpi"};
  Mpi mpich{"mpich"};
#ifdef DCKPT_OPENMPI_EXEC
  openmpi = {"openmpi", DCKPT_OPENMPI_EXEC " --allow-run-as-root --oversubscribe",
             DCKPT_OPENMPI_RANK, DCKPT_OPENMPI_TOOL};
#endif
#ifdef DCKPT_MPICH_EXEC
  mpich = {"mpich", DCKPT_MPICH_EXEC, DCKPT_MPICH_RANK, DCKPT_MPICH_TOOL};
#endif
  return {openmpi, mpich};
}

/// Each test runs with each MPI.
class OnEachMpi : public ::testing::TestWithParam<Mpi> {
 protected:
  void SetUp() override {
    if (GetParam().launcher.empty())
      GTEST_SKIP() << GetParam().name << " is missing (scripts/bootstrap test installs it)";
  }

  /// Runs a shell command, with at most a minute.
  static ToolRun run(const std::string& command) {
    const TempDir scratch;
    const auto in_scratch = [&](const char* name) { return (scratch / name).string(); };
    const std::string line = "timeout -k 5 60 " + command + " </dev/null >" + in_scratch("out") +
                             " 2>" + in_scratch("err") + "; echo $? >" + in_scratch("code");
    if (std::system(line.c_str()) == -1) throw std::runtime_error("no shell");
    return {std::stoi(slurp(scratch / "code")), slurp(scratch / "out"), slurp(scratch / "err")};
  }
  static ToolRun run_ranks(int count, const std::string& command) {
    return run(GetParam().launcher + " -n " + std::to_string(count) + " " + command);
  }
};

}  // namespace dckpt::testing
