// The checkpoints of a run that are kept, and those that may be replaced.

#include <gmock/gmock.h>

#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/expect_error.h"

namespace dckpt::testing::checkpointer_retention_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(CheckpointerTest, RetentionKeepsTheNewestAndMultiples) {
  saved({100, 200, 300, 400, 500}, {.retention = {.keep_last = 2, .keep_every = 200}});
  EXPECT_THAT(entries(),
              ElementsAre(".dckpt.lock", "iter_0000200", "iter_0000400", "iter_0000500", kTracker));
}

TEST_F(CheckpointerTest, RetentionLeavesWhatIsNotItsOwn) {
  saved({100, 200});
  fs::create_directory(root_ / "iter_1");
  fs::create_directory(root_ / "tokenizer");
  fs::rename(root_ / "iter_0000100", directory_ / "archived");
  fs::create_directory_symlink(directory_ / "archived", root_ / "iter_0000100");
  saved({300}, {.retention = {.keep_last = 1}});
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "iter_0000100", "iter_0000300", "iter_1",
                                     kTracker, "tokenizer"));
  EXPECT_TRUE(fs::exists(directory_ / "archived" / "metadata.json"));
}

TEST_F(CheckpointerTest, RetentionKeepsWhatALinkLeadsTo) {
  saved({100, 200});
  fs::create_directory_symlink("iter_0000100", root_ / "release");
  saved({300, 400}, {.retention = {.keep_last = 1}});
  EXPECT_THAT(entries(),
              ElementsAre(".dckpt.lock", "iter_0000100", "iter_0000400", kTracker, "release"));
}

TEST_F(CheckpointerTest, RetentionKeepsWhatIsMarkedAsTheBest) {
  saved({100, 200, 300, 400});
  fs::create_directories(root_ / "best");
  fs::create_directory_symlink("../iter_0000100", root_ / "best" / "loss");
  std::ofstream(root_ / "best.txt") << "iter_0000200";
  saved({500, 600}, {.retention = {.keep_last = 1, .keep = {"300"}}});
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "best", "best.txt", "iter_0000100",
                                     "iter_0000200", "iter_0000300", "iter_0000600", kTracker));
}

TEST_F(CheckpointerTest, RetentionCountsOnlySoundOnes) {
  saved({100, 200, 300});
  const fs::path file = root_ / "iter_0000300" / "__0_0.distcp";
  std::ofstream(file, std::ios::in | std::ios::out | std::ios::binary)
      << std::string(fs::file_size(file), '\0');
  const Warnings warnings;
  saved({400}, {.retention = {.keep_last = 2}});
  EXPECT_THAT(entries(),
              ElementsAre(".dckpt.lock", "iter_0000200", "iter_0000300", "iter_0000400", kTracker));
  EXPECT_THAT(warnings.text(),
              HasSubstr("'iter_0000300' does not count among the 2 that retention keeps"));
}

TEST_F(CheckpointerTest, RetentionKeepsWhatTheRunHasLoaded) {
  saved({100, 200});
  job(2,
      [&](Checkpointer& checkpointer, Communicator& comm) {
        StateDict state = empty_state(comm.rank(), 2);
        checkpointer.load(state, 100);
        for (const std::uint64_t iteration : {300, 400})
          checkpointer.save(state_at(iteration, comm.rank(), 2), iteration);
      },
      {.retention = {.keep_last = 1}});
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "iter_0000100", "iter_0000400", kTracker));
}

TEST_F(CheckpointerTest, ACheckpointThatCannotBeRemovedIsAWarning) {
  saved({100});
  fs::path deep = root_ / "iter_0000100";
  for (int level = 0; level < 70; ++level) deep /= "d";  // deeper than a removal descends
  fs::create_directories(deep);
  const Warnings warnings;
  saved({200, 300}, {.retention = {.keep_last = 1}});
  EXPECT_THAT(warnings.text(),
              HasSubstr("iteration 200 is saved, but old checkpoints could not be removed"));
  EXPECT_EQ(resumed(), 300);
  EXPECT_FALSE(fs::exists(root_ / "iter_0000100")) << "what remains of it is hidden";
}

TEST_F(CheckpointerTest, ACompleteIterationIsNotReplaced) {
  saved({100, 200});
  const CheckpointError error = error_of([&] { saved({200}); });
  EXPECT_EQ(error.code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(error.what(), HasSubstr("refusing to replace iteration 200, which is complete"));
  EXPECT_THAT(error_of([&] {
                saved({300, 300});
              }).what(),
              HasSubstr("refusing to replace iteration 300"));
  EXPECT_EQ(resumed(), 300);
}

TEST_F(CheckpointerTest, ItIsReplacedWhereThatIsAllowed) {
  saved({100});
  Policy policy;
  policy.save.overwrite = true;
  saved({100, 100}, policy);
  EXPECT_EQ(resumed(), 100);
}

TEST_F(CheckpointerTest, AnIncompleteIterationIsReplaced) {
  saved({100, 200});
  fs::remove(root_ / "iter_0000200" / "__0_0.distcp");
  const Warnings warnings;
  saved({200});
  EXPECT_THAT(warnings.text(), HasSubstr("iteration 200 is there but incomplete, and is replaced"));
  EXPECT_EQ(resumed(), 200);
}

TEST_F(CheckpointerTest, ARunThatWentBackReplacesTheHistoryItLeft) {
  saved({100, 200, 300, 400});
  const Warnings warnings;
  job(2,
      [&](Checkpointer& checkpointer, Communicator& comm) {
        StateDict state = empty_state(comm.rank(), 2);
        checkpointer.load(state, 200);
        checkpointer.save(state_at(300, comm.rank(), 2), 300);
        EXPECT_THAT(error_of([&] { checkpointer.save(state_at(300, comm.rank(), 2), 300); }).what(),
                    HasSubstr("refusing to replace iteration 300"));
      },
      {.retention = {.keep_last = 2}});
  EXPECT_THAT(
      warnings.text(),
      HasSubstr(
          "iteration 300 is replaced: it was saved before the run went back to iteration 200"));
  EXPECT_EQ(resumed(), 300) << "and not 400, of the history that was left";
  EXPECT_THAT(entries(),
              ElementsAre(".dckpt.lock", "iter_0000200", "iter_0000300", "iter_0000400", kTracker));
}

TEST_F(CheckpointerTest, ARunThatForgetsToLoadIsWarned) {
  saved({100, 200});
  const Warnings warnings;
  job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
    checkpointer.claim();
    checkpointer.save(state_at(50, comm.rank(), 2), 50);
  });
  EXPECT_THAT(warnings.text(), HasSubstr("has iterations 100 and 200, but this run has loaded none "
                                         "of them; it is about to save iteration 50"));
}

}  // namespace
}  // namespace dckpt::testing::checkpointer_retention_test
