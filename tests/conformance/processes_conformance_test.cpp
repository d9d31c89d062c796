#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "conformance/communicator_conformance.h"
#include "mapping/base/error.h"
#include "strategies/comm/sockets/socket_communicator.h"
#include "tests/support/temp_dir.h"

namespace dckpt::processes_conformance_test {
namespace {

/// Returns 0 if this rank finds nothing wrong.
int check(const std::string& folder, int rank, int size, bool shared_memory) {
  try {
    const auto comm = socket_communicator(
        folder, rank, size, {.timeout = std::chrono::minutes(2), .shared_memory = shared_memory});
    const std::vector<std::string> problems = check_communicator(*comm).problems;
    for (const std::string& problem : problems) std::fprintf(stderr, "%s\n", problem.c_str());
    return problems.empty() ? 0 : 1;
  } catch (const CheckpointError& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

class ProcessesOverSockets : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(ProcessesOverSockets, Conform) {
  const auto [size, shared_memory] = GetParam();
  const TempDir folder;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) {
    processes.push_back(::fork());
    if (processes.back() == 0)
      ::_exit(check(folder.path().string() + "/", rank, size, shared_memory));
  }
  for (const pid_t process : processes) {
    int status = 0;
    ::waitpid(process, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Few, ProcessesOverSockets,
                         ::testing::Combine(::testing::Values(2, 4), ::testing::Bool()));
INSTANTIATE_TEST_SUITE_P(Many, ProcessesOverSockets,
                         ::testing::Values(std::tuple(16, false)));  // 64 take a minute

}  // namespace
}  // namespace dckpt::processes_conformance_test
