// The checkpoint that a run resumes from, whatever users and crashes have done to its root.

#include <gmock/gmock.h>

#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/expect_error.h"

namespace dckpt::testing::checkpointer_latest_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(CheckpointerTest, AMistypedRootIsAWarningOrAnErrorOfResume) {
  saved({100});
  const fs::path mistyped = root_.string() + "s";
  const Warnings warnings;
  run_ranks(2, [&](Communicator& comm) {
    Checkpointer checkpointer(mistyped, {}, comm);
    StateDict state = empty_state(comm.rank(), 2);
    EXPECT_FALSE(checkpointer.load_latest(state));
    EXPECT_THAT(error_of([&] { checkpointer.resume(state); }).what(),
                AllOf(HasSubstr("cannot resume"), HasSubstr("did you mean")));
  });
  EXPECT_THAT(warnings.text(),
              AllOf(HasSubstr("does not exist; did you mean '" + root_.string() + "'?"),
                    HasSubstr("begins anew")));
}

TEST_F(CheckpointerTest, AnEmptyRootHoldsNothingAndStaysAsItIs) {
  EXPECT_EQ(resumed(), -1);
  EXPECT_FALSE(fs::exists(root_)) << "looking creates nothing";
  fs::create_directory(root_);
  EXPECT_EQ(resumed(), -1);
  EXPECT_THAT(entries(), IsEmpty());
}

TEST_F(CheckpointerTest, ATrackerThatLeadsNowhereStopsTheRun) {
  saved({100, 200});
  for (const auto& [content, message] : std::vector<std::pair<std::string, std::string>>{
           {"rubbish\n", "the tracker holds 'rubbish'"},
           {"", "the tracker holds ''"},
           {"../run/iter_0000100", "the tracker holds '../run"},
           {std::string(9000, '7'), "it has 9,000 bytes"},
           {"150", "'iter_0000150' is not used: it does not exist"},
           {"300", "'iter_0000300' is not used: it does not exist"},
           {"release", "'release' is not used: it does not exist"}}) {
    set_tracker(content);
    EXPECT_THAT(error_of([&] { resumed(); }).what(), HasSubstr(message)) << content;
  }
  fs::remove(root_ / kTracker);
  fs::create_symlink("nowhere", root_ / kTracker);
  EXPECT_EQ(error_of([&] { resumed(); }).code(), ErrorCode::kCorrupt);
  fs::remove(root_ / kTracker);
  const Warnings warnings;
  EXPECT_EQ(resumed(), 200);
  EXPECT_EQ(warnings.text(), "");
}

TEST_F(CheckpointerTest, WhoGoesBackToAnIncompleteIterationIsNotTakenElsewhere) {
  saved({100, 200, 300});
  fs::remove(root_ / "iter_0000200" / ".metadata");
  set_tracker("200");
  const CheckpointError error = error_of([&] { resumed(); });
  EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
  EXPECT_THAT(error.what(), AllOf(HasSubstr(".metadata is missing"),
                                  HasSubstr("the root has iterations 100, 200 and 300")));
}

TEST_F(CheckpointerTest, WhatACrashTookAwayWhileItWasReplacedIsMadeGoodByAnOlderOne) {
  saved({100, 200});
  fs::rename(root_ / "iter_0000200", root_ / ".iter_0000200.replaced-x");
  const Warnings warnings;
  EXPECT_EQ(resumed(), 100);
  EXPECT_THAT(warnings.text(), HasSubstr("'iter_0000200' is not used: it does not exist"));
}

TEST_F(CheckpointerTest, GoesBackWhereTheTrackerSaysSo) {
  saved({100, 200, 300});
  set_tracker("100\n");
  const Warnings warnings;
  EXPECT_EQ(resumed(), 100);
  EXPECT_THAT(warnings.text(),
              HasSubstr("iterations 200 and 300: not used, because "
                        "latest_checkpointed_iteration.txt names an older one, 'iter_0000100'"));
}

TEST_F(CheckpointerTest, AReleaseThatTheTrackerNamesIsNotCalledOlder) {
  saved({100, 200});
  fs::rename(root_ / "iter_0000100", root_ / "release");
  set_tracker("release\n");
  const Warnings warnings;
  EXPECT_EQ(resumed(), 100);
  EXPECT_THAT(warnings.text(), HasSubstr("iteration 200: not used, because "
                                         "latest_checkpointed_iteration.txt names 'release'"));
}

TEST_F(CheckpointerTest, ReleasesAreLoadedAsIterationZero) {
  saved({100});
  fs::rename(root_ / "iter_0000100", root_ / "release");
  set_tracker("release");
  EXPECT_EQ(resumed(), 100) << "the common state of iteration 100";
  job(1, [&](Checkpointer& checkpointer, Communicator&) { EXPECT_EQ(checkpointer.latest(), 0U); });
  fs::remove(root_ / kTracker);
  EXPECT_EQ(resumed(), 100);
}

/// A damage of the newest checkpoint, and what the warning says about it.
struct Damage {
  const char* name;
  std::function<void(const fs::path&)> inflict;
  const char* warning;
};

TEST_F(CheckpointerTest, AnIncompleteCheckpointIsPassedOver) {
  const std::vector<Damage> damages = {
      {"a data file is missing", [](const fs::path& path) { fs::remove(path / "__1_0.distcp"); },
       "'__1_0.distcp' is missing"},
      {"a data file is cut",
       [](const fs::path& path) { fs::resize_file(path / "__0_0.distcp", 100); },
       "'__0_0.distcp' has 100 bytes of "},
      {"no metadata", [](const fs::path& path) { fs::remove(path / ".metadata"); },
       ".metadata is missing"},
      {"cut metadata", [](const fs::path& path) { fs::resize_file(path / ".metadata", 50); },
       ".metadata"},
      {"Megatron died before metadata.json",
       [](const fs::path& path) { fs::remove(path / "metadata.json"); },
       "metadata.json is missing"},
      {"no common state", [](const fs::path& path) { fs::remove(path / "common.pt"); },
       "common.pt"},
      {"cut common state", [](const fs::path& path) { fs::resize_file(path / "common.pt", 20); },
       "common.pt"},
      {"nothing in it",
       [](const fs::path& path) { fs::remove_all(path), fs::create_directory(path); },
       "the directory is empty"},
  };
  saved({100, 200});
  const fs::path sound = directory_ / "sound";
  fs::copy(root_ / "iter_0000200", sound);
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.name);
    fs::remove_all(root_ / "iter_0000200");
    fs::copy(sound, root_ / "iter_0000200");
    damage.inflict(root_ / "iter_0000200");
    const Warnings warnings;
    EXPECT_EQ(resumed(), 100);
    EXPECT_THAT(warnings.text(),
                AllOf(HasSubstr("'iter_0000200' is not used"), HasSubstr(damage.warning),
                      HasSubstr("resuming from 'iter_0000100'")));
  }
}

TEST_F(CheckpointerTest, OnlyIncompleteCheckpointsAreAnErrorAndNoFreshStart) {
  saved({100, 200});
  fs::remove(root_ / "iter_0000100" / ".metadata");
  fs::remove(root_ / "iter_0000200" / "__0_0.distcp");
  const CheckpointError error = error_of([&] { resumed(); });
  EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("'iter_0000100' is not used"),
                    HasSubstr("'iter_0000200' is not used"), HasSubstr("to start over")));
}

TEST_F(CheckpointerTest, AMissingIterationIsAnErrorThatNamesWhatIsThere) {
  saved({100, 200});
  const CheckpointError error = error_of([&] {
    job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
      StateDict state = empty_state(comm.rank(), 2);
      checkpointer.load(state, 150);
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
  EXPECT_THAT(error.what(),
              HasSubstr("the training root has no iteration 150; it has iterations 100 and 200"));
}

}  // namespace
}  // namespace dckpt::testing::checkpointer_latest_test
