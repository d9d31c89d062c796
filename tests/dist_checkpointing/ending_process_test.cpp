// Processes that end while they save or load in the background, in the ways of ending_process.cpp.

#include <gmock/gmock.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/dist_checkpointing/training_run.h"

namespace dckpt::testing::ending_process_test {
namespace {

class EndingProcess : public TrainingRun {
 protected:
  /// Returns the exit code, or minus the signal.
  int run(std::string what, std::string how) const {
    std::string program = DCKPT_ENDING_PROCESS;
    std::string folder = directory_.path();
    char* const arguments[] = {program.data(), folder.data(), what.data(), how.data(), nullptr};
    pid_t process = 0;
    if (posix_spawn(&process, arguments[0], nullptr, nullptr, arguments, environ) != 0) return 126;
    int status = 0;
    waitpid(process, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
};

TEST_F(EndingProcess, EndsOnceTheSaveInTheBackgroundIsDone) {
  for (const char* const how : {"main", "other", "fork"}) {
    std::filesystem::remove_all(root_);
    saved({1});
    EXPECT_EQ(run("save", how), 0) << how;
    EXPECT_EQ(resumed(), 2) << how;
  }
}

TEST_F(EndingProcess, EndsOnceTheLoadInTheBackgroundIsDone) {
  saved({1});
  for (const char* const how : {"main", "other", "fork"}) EXPECT_EQ(run("load", how), 0) << how;
}

}  // namespace
}  // namespace dckpt::testing::ending_process_test
