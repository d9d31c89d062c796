// Ranks as threads of several processes, each with a communicator over sockets of its own.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/error.h"
#include "mapping/state/sharded_tensor.h"
#include "strategies/comm/sockets/socket_communicator.h"
#include "strategies/comm/threads.h"
#include "tests/support/temp_dir.h"

namespace dckpt::threads_of_processes_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kProcesses = 2;
constexpr int kThreads = 3;
constexpr int kRanks = kProcesses * kThreads;

/// Runs `rank` in each thread of each process, and returns the errors of the ranks.
std::vector<std::string> run(const fs::path& folder,
                             const std::function<void(Communicator&)>& rank) {
  const auto be_thread = [&](int process, const Communicator& here) {
    const int number = process * kThreads + here.rank();
    std::string error;
    try {
      const auto comm = socket_communicator(folder.string() + "/", number, kRanks,
                                            {.timeout = std::chrono::minutes(2)});
      rank(*comm);
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    std::ofstream(folder / std::to_string(number)) << error;
  };
  std::vector<pid_t> processes;
  for (int process = 0; process < kProcesses; ++process) {
    processes.push_back(::fork());
    if (processes.back() != 0) continue;
    run_ranks(kThreads, [&](Communicator& here) { be_thread(process, here); });
    ::_exit(0);
  }
  for (const pid_t process : processes) {
    int status = 0;
    EXPECT_EQ(::waitpid(process, &status, 0), process);
    EXPECT_EQ(status, 0);
  }
  std::vector<std::string> errors;
  for (int number = 0; number < kRanks; ++number) {
    std::ifstream file(folder / std::to_string(number));
    EXPECT_TRUE(file) << "rank " << number;
    errors.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return errors;
}

/// Describes an equal part of a tensor of 12 × 6 elements.
StateDict part(Tensor tensor, int axis, int rank, int count) {
  StateDict state;
  state["weight"] = ShardedTensor::from_rank_offsets(
      "weight", std::move(tensor), {{.axis = axis, .rank = rank, .count = count}});
  return state;
}

TEST(ThreadsOfProcesses, SaveAndLoadTogether) {
  const TempDir folder;
  const fs::path checkpoint = folder.path() / "checkpoint";
  const auto errors = run(folder.path(), [&](Communicator& comm) {
    Tensor rows = Tensor::empty(DType::kInt64, {2, 6});
    for (int i = 0; i < 12; ++i) rows.data<std::int64_t>()[i] = comm.rank() * 12 + i;
    save(part(rows, 0, comm.rank(), kRanks), checkpoint, {}, comm);

    Tensor column = Tensor::empty(DType::kInt64, {12, 1});
    StateDict columns = part(column, 1, comm.rank(), kRanks);
    load(columns, checkpoint, {.parallel = {.enabled = true}}, comm);
    for (int row = 0; row < 12; ++row) {
      if (column.data<std::int64_t>()[row] != row * 6 + comm.rank())
        throw std::runtime_error("wrong elements");
    }
  });
  EXPECT_THAT(errors, Each(""));
  Tensor all = Tensor::empty(DType::kInt64, {12, 6});
  StateDict whole = part(all, 0, 0, 1);
  load(whole, checkpoint);
  for (int i = 0; i < 72; ++i) EXPECT_EQ(all.data<std::int64_t>()[i], i);
}

TEST(ThreadsOfProcesses, AThreadThatFailsIsNamedByAllOthersAtOnce) {
  const TempDir folder;
  const auto begin = std::chrono::steady_clock::now();
  auto errors = run(folder.path(), [](Communicator& comm) {
    (void)comm.all_to_all(std::vector<Bytes>(kRanks));
    if (comm.rank() == 4) throw std::runtime_error("no such batch");
    comm.barrier();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
  EXPECT_EQ(errors[4], "no such batch");
  errors.erase(errors.begin() + 4);
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("barrier"), HasSubstr("rank 4 has given up"))));
}

}  // namespace
}  // namespace dckpt::threads_of_processes_test
