// Jobs that die, and jobs that interfere with each other. The tests fork, so they are not run under
// ThreadSanitizer.

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cstring>
#include <thread>

#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/child_process.h"
#include "tests/support/expect_error.h"
#include "tests/support/random.h"
#include "tests/support/simulated_device.h"

namespace dckpt::testing::checkpointer_crash_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CheckpointerCrashTest : public TrainingRun {
 protected:
  /// Does what a restarted job does: claims the root and resumes from what is there.
  std::uint64_t restart() const {
    std::uint64_t iteration = 0;
    job(1, [&](Checkpointer& checkpointer, Communicator&) {
      checkpointer.claim();
      StateDict state = empty_state(0, 1);
      const auto resumed = checkpointer.load_latest(state);
      ASSERT_TRUE(resumed);
      EXPECT_TRUE(holds(state, resumed->iteration, 0, 1));
      iteration = resumed->iteration;
    });
    return iteration;
  }

  std::vector<std::string> hidden_entries() const {
    std::vector<std::string> hidden;
    for (const std::string& name : entries()) {
      if (name.starts_with('.') && name != ".dckpt.lock") hidden.push_back(name);
    }
    return hidden;
  }
};

enum class Where { kForeground, kBackground, kLazyBackground };
class KilledSaves : public CheckpointerCrashTest, public ::testing::WithParamInterface<Where> {};

/// Kills a job at every change that it makes to files during a save, each time a later one, until a
/// save completes.
TEST_P(KilledSaves, LeaveARootFromWhichTheRunGoesOn) {
  Policy policy{.retention = {.keep_last = 2}};
  policy.save.async.enabled = GetParam() != Where::kForeground;
  if (GetParam() == Where::kLazyBackground) policy.save.async.snapshot = Snapshot::kLazy;
  const Warnings silenced;
  saved({100, 200}, policy);
  std::uint64_t last = 200;
  bool lost = false;
  bool published = false;
  testing::Sweep sweep;
  for (std::uint64_t call = 1;; call = sweep.after(call)) {
    SCOPED_TRACE(sweep.trace(call));
    const std::uint64_t next = last + 100;
    const Ended ended = killed_at(call, [&](const std::function<void()>& start) {
      const auto alone = single_rank();
      Checkpointer checkpointer(root_, policy, *alone);
      StateDict state = empty_state(0, 1);
      if (!checkpointer.load_latest(state))
        throw std::runtime_error("there is nothing to go on from");
      start();
      state = state_at(next, 0, 1);
      checkpointer.save(state, next);
      checkpointer.wait_staged();
      const Tensor& mine = *state["w"].as_sharded_tensor().data;
      std::memset(mine.mutable_data(), 0xEE, mine.nbytes());
      checkpointer.wait();
    });
    if (ended == Ended::kNotTraceable)
      GTEST_SKIP() << "this system does not let a process trace its children";
    ASSERT_NE(ended, Ended::kFailed);
    const std::uint64_t found = restart();
    ASSERT_THAT(hidden_entries(), ElementsAre()) << "what the dead job left is removed";
    ASSERT_TRUE(found == last || found == next);
    if (ended == Ended::kFinished) {
      EXPECT_EQ(found, next);
      EXPECT_GT(call, 20U) << "the sweep has killed saves";
      break;
    }
    lost |= found == last;
    published |= found == next;
    last = found;
  }
  EXPECT_TRUE(lost && published) << "some calls come before the new checkpoint counts, some after";
}

INSTANTIATE_TEST_SUITE_P(All, KilledSaves,
                         ::testing::Values(Where::kForeground, Where::kBackground,
                                           Where::kLazyBackground),
                         [](const auto& where) {
                           return where.param == Where::kForeground   ? "InTheForeground"
                                  : where.param == Where::kBackground ? "InTheBackground"
                                                                      : "InTheBackgroundLazily";
                         });

TEST_F(CheckpointerCrashTest, AJobThatIsKilledWhileItCopiesLeavesTheCheckpointBefore) {
  saved({100});
  for (const Snapshot snapshot : {Snapshot::kEager, Snapshot::kLazy}) {
    int copying[2];
    ASSERT_EQ(pipe(copying), 0);
    ChildProcess child([&] {
      const RegisteredSimulation device;
      Policy policy;
      policy.save.async = {.enabled = true, .snapshot = snapshot};
      const auto alone = single_rank();
      Checkpointer checkpointer(root_, policy, *alone);
      StateDict state = state_at(200, 0, 1);
      ShardedTensor w = state["w"].as_sharded_tensor();
      w.data = device->on_device(*w.data);
      state["w"] = w;
      device->hang(true);
      const std::jthread saving([&] { checkpointer.save(state, 200); });
      while (device->leaked() < 3)
        std::this_thread::yield();  // a stream, a piece of host memory and the event of its copy
      if (write(copying[1], "x", 1) == 1) pause();
    });
    char byte = 0;
    ASSERT_EQ(read(copying[0], &byte, 1), 1);
    child.kill();
    EXPECT_THAT(hidden_entries(), ElementsAre(StartsWith(".iter_0000200.saving-")));
    EXPECT_EQ(restart(), 100U);
    EXPECT_THAT(hidden_entries(), ElementsAre());
    close(copying[0]);
    close(copying[1]);
  }
}

TEST_F(CheckpointerCrashTest, OneJobSavesAtATimeUntilItDies) {
  saved({100});
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  ChildProcess other([&] {
    const auto alone = single_rank();
    Checkpointer checkpointer(root_, {}, *alone);
    checkpointer.claim();
    if (write(ready[1], "x", 1) == 1) pause();
  });
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  job(4, [&](Checkpointer& checkpointer, Communicator& comm) {
    const CheckpointError error =
        error_of([&] { checkpointer.save(state_at(200, comm.rank(), 4), 200); });
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
    EXPECT_THAT(error.what(),
                HasSubstr("another job has this training root (it is locked by job "));
    EXPECT_THAT(error.what(), HasSubstr("-" + std::to_string(other.id()) + "-"));
    EXPECT_THAT(error_of([&] { checkpointer.claim(); }).what(), HasSubstr("another job"));
    StateDict state = empty_state(comm.rank(), 4);
    EXPECT_TRUE(checkpointer.load_latest(state)) << "loading needs no lock";
  });
  other.kill();
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "iter_0000100", kTracker));
  saved({200});
  EXPECT_EQ(restart(), 200U);
}

TEST_F(CheckpointerCrashTest, TwoCheckpointersOfOneProcessExcludeEachOtherToo) {
  const auto alone = single_rank();
  Checkpointer first(root_, {}, *alone);
  Checkpointer second(root_, {}, *alone);
  first.save(state_at(100, 0, 1), 100);
  EXPECT_THAT(error_of([&] { second.save(state_at(200, 0, 1), 200); }).what(),
              HasSubstr("another job has this training root"));
  EXPECT_EQ(second.latest(), 100U);
}

TEST_F(CheckpointerCrashTest, ARootOrALockThatIsTakenAwayIsClaimedAgainOrGivenUp) {
  const std::vector<std::function<void()>> losses = {
      [&] { std::filesystem::remove_all(root_); },
      [&] { std::filesystem::rename(root_, directory_ / "moved"); },
      [&] { std::filesystem::remove(root_ / ".dckpt.lock"); },
      [&] { std::filesystem::rename(root_ / ".dckpt.lock", root_ / "lock.old"); },
  };
  const auto alone = single_rank();
  for (const bool other_is_first : {false, true}) {
    for (const auto& lose : losses) {
      std::filesystem::remove_all(root_);
      std::filesystem::remove_all(directory_ / "moved");
      Checkpointer first(root_, {}, *alone);
      Checkpointer second(root_, {}, *alone);
      first.save(state_at(100, 0, 1), 100);
      lose();
      const Warnings warnings;
      Checkpointer& winner = other_is_first ? second : first;
      Checkpointer& loser = other_is_first ? first : second;
      winner.save(state_at(200, 0, 1), 200);
      EXPECT_EQ(error_of([&] { loser.save(state_at(300, 0, 1), 300); }).code(),
                ErrorCode::kAborted);
      winner.save(state_at(400, 0, 1), 400);
      EXPECT_EQ(winner.latest(), 400U);
      EXPECT_THAT(warnings.text(), HasSubstr("was removed or moved while this job"));
    }
  }
}

TEST_F(CheckpointerCrashTest, ADiskThatIsFullFailsTheSaveAndLeavesWhatWasThere) {
  saved({100});
  ChildProcess child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{512, 512};
    setrlimit(RLIMIT_FSIZE, &limit);
    job(4, [&](Checkpointer& checkpointer, Communicator& comm) {
      const CheckpointError error =
          error_of([&] { checkpointer.save(state_at(200, comm.rank(), 4), 200); });
      if (error.code() != ErrorCode::kIo ||
          std::string(error.what()).find("on ranks 0, 1, 2, 3 of 4") == std::string::npos)
        throw error;
    });
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "iter_0000100", kTracker));
  EXPECT_EQ(restart(), 100U);
}

}  // namespace
}  // namespace dckpt::testing::checkpointer_crash_test
