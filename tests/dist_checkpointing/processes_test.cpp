// Jobs of real processes over Gloo, one of which dies or hangs. training_process.cpp describes
// them.

#include <gmock/gmock.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "tests/dist_checkpointing/errors_of_survivors.h"
#include "tests/support/temp_dir.h"

namespace dckpt::testing::processes_test {
namespace {

using ::testing::Each;

/// The end of a job: rank `victim` ends before the `operation`-th exchange of a save, or after the
/// save if it has fewer.
struct Ending {
  int victim;
  int operation;
  bool may_be_published;  ///< whether the save may count by then
  std::string how = "kill";
};

constexpr int kAfterTheSave = 1000;
constexpr int kAboutPublishing = 11;

class Processes : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { size_ = GetParam(); }

  /// Runs one job after the other in the same root. Every job checks that it resumes from what the
  /// previous one has left.
  void run_jobs(const std::vector<Ending>& endings) {
    for (const Ending& ending : endings) {
      SCOPED_TRACE("rank " + std::to_string(ending.victim) + " of " + std::to_string(size_) +
                   " ends at exchange " + std::to_string(ending.operation));
      EXPECT_THAT(run_job(ending), Each(0)) << "all ranks that live get an error";
      for (const std::string& error : errors_but_of(ending.victim))
        EXPECT_TRUE(names_rank(error, ending.victim) && names_phase(error)) << error;
      ASSERT_TRUE(std::ifstream(folder_ / "saved") >> oldest_);
      newest_ = oldest_ + (ending.may_be_published ? 100 : 0);
      if (ending.operation == kAfterTheSave) oldest_ = newest_;
    }
  }

 private:
  /// Returns the exit codes of all ranks but the victim.
  std::vector<int> run_job(const Ending& ending) const {
    std::filesystem::remove(folder_ / "store");
    std::vector<pid_t> processes;
    for (int rank = 0; rank < size_; ++rank) {
      std::filesystem::remove(folder_ / ("error." + std::to_string(rank)));
      processes.push_back(start(
          {DCKPT_TRAINING_PROCESS, folder_.path(), std::to_string(oldest_), std::to_string(newest_),
           std::to_string(ending.victim), std::to_string(ending.operation), ending.how},
          {"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(size_)}));
    }
    std::vector<int> codes;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == ending.victim) continue;
      int status = 0;
      EXPECT_EQ(waitpid(processes[static_cast<std::size_t>(rank)], &status, 0),
                processes[static_cast<std::size_t>(rank)]);
      codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    const pid_t victim = processes[static_cast<std::size_t>(ending.victim)];
    kill(victim, SIGKILL);
    waitpid(victim, nullptr, 0);
    return codes;
  }

  static pid_t start(std::vector<std::string> words, std::vector<std::string> variables) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    for (char** variable = environ; *variable != nullptr; ++variable)
      environment.push_back(*variable);
    environment.push_back(nullptr);
    pid_t process = 0;
    EXPECT_EQ(
        posix_spawn(&process, arguments[0], nullptr, nullptr, arguments.data(), environment.data()),
        0);
    return process;
  }

  std::vector<std::string> errors_but_of(int victim) const {
    std::vector<std::string> errors;
    for (int rank = 0; rank < size_; ++rank) {
      std::ifstream file(folder_ / ("error." + std::to_string(rank)));
      if (rank != victim)
        errors.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return errors;
  }

  int size_ = 0;
  std::uint64_t oldest_ = 0;  ///< first iteration that the next job may resume from
  std::uint64_t newest_ = 0;  ///< last one; 0: it starts from scratch
  TempDir folder_;
};

TEST_P(Processes, ThatAreKilledBeforeInOrAfterASaveFailTheOthersAndTheNextJobGoesOn) {
  const int last = GetParam() - 1;
  run_jobs({{last, 6, false}, {0, kAboutPublishing, true}, {last, kAfterTheSave, true}});
  if (GetParam() == 4)
    run_jobs({{last, 1, false},
              {0, 1, false},
              {0, 6, false},
              {1, kAboutPublishing, true},
              {0, kAfterTheSave, true}});
}

INSTANTIATE_TEST_SUITE_P(Gloo, Processes, ::testing::Values(2, 4, 8),
                         ::testing::PrintToStringParamName());

class SilentProcesses : public Processes {};

TEST_P(SilentProcesses, AreWaitedForUntilTheTimeout) {
  run_jobs({{GetParam() / 2, 6, false, "stop"}});
}

INSTANTIATE_TEST_SUITE_P(Gloo, SilentProcesses, ::testing::Values(4),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace dckpt::testing::processes_test
