#include "operations/inspect/root_survey.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "dist_checkpointing/open/tracker.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/state/sharded_tensor.h"
#include "tests/support/temp_dir.h"

namespace dckpt::root_survey_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using State = IterationSummary::State;

class Survey : public ::testing::Test {
 protected:
  void make(std::uint64_t iteration) {
    StateDict state;
    state["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {4}));
    save(state, path(iteration));
  }
  fs::path path(std::uint64_t iteration) const { return root_ / iteration_directory(iteration); }
  void track(const std::string& text) const { std::ofstream(root_ / kTrackerFile) << text; }
  RootSurvey survey(const SurveyOptions& options = {}) const {
    return survey_root(root_.path(), options);
  }
  static std::vector<State> states(const RootSurvey& survey) {
    std::vector<State> states;
    for (const IterationSummary& summary : survey.iterations) states.push_back(summary.state);
    return states;
  }
  static std::vector<std::string> names(const RootSurvey& survey,
                                        bool IterationSummary::*selected) {
    std::vector<std::string> names;
    for (const IterationSummary& summary : survey.iterations)
      if (summary.*selected) names.push_back(summary.directory);
    return names;
  }

  TempDir root_;
};

TEST_F(Survey, OfAnEmptyRootFindsNothing) {
  track("10");
  const RootSurvey found = survey();
  EXPECT_TRUE(found.iterations.empty());
  EXPECT_EQ(found.tracked, "iter_0000010");
  EXPECT_FALSE(found.resume.checkpoint);
  EXPECT_THAT(found.resume.passed_over,
              ElementsAre(HasSubstr("'iter_0000010' is not used: it does not exist")));
}

TEST_F(Survey, SaysWhatIsWrongWithEachIteration) {
  for (const std::uint64_t iteration : {1, 2, 3, 4, 5, 6, 8}) make(iteration);
  fs::remove(path(2) / ".metadata");
  fs::remove(path(3) / "__0_0.distcp");
  fs::resize_file(path(4) / "__0_0.distcp", 20);
  fs::resize_file(path(5) / ".metadata", 20);
  std::ofstream(path(6) / "metadata.json")
      << R"({"sharded_backend": "of_tomorrow", "sharded_backend_version": 1})";
  fs::create_directory(path(7));
  fs::remove(path(8) / "common.pt");
  const RootSurvey found = survey();
  EXPECT_THAT(states(found), ElementsAre(State::kComplete, State::kNoMetadata, State::kFileMissing,
                                         State::kFileTruncated, State::kDamaged, State::kUnreadable,
                                         State::kNoMetadata, State::kFileMissing));
  EXPECT_THAT(found.iterations[7].why, HasSubstr("common.pt does not exist"));
  EXPECT_EQ(found.iterations[2].why, "'__0_0.distcp' is missing");
  EXPECT_THAT(found.iterations[5].why, HasSubstr("of_tomorrow"));
  EXPECT_GT(found.iterations[0].bytes, 16u);
  EXPECT_GT(found.iterations[0].saved, 0);
  // An unreadable checkpoint is no reason to take an older one, nor to fail here.
  EXPECT_FALSE(found.resume.checkpoint);
  EXPECT_THAT(found.resume.passed_over.back(), HasSubstr("of_tomorrow"));
}

TEST_F(Survey, MarksWhatARunTakesAndWhatTheTrackerNames) {
  make(10);
  make(20);
  track("20");
  EXPECT_THAT(names(survey(), &IterationSummary::resumed), ElementsAre("iter_0000020"));
  fs::remove(path(20) / "__0_0.distcp");
  EXPECT_THAT(names(survey(), &IterationSummary::resumed), ElementsAre("iter_0000010"));
  EXPECT_THAT(names(survey(), &IterationSummary::tracked), ElementsAre("iter_0000020"));
  track("30");
  EXPECT_THAT(names(survey(), &IterationSummary::tracked), ElementsAre());
  EXPECT_THAT(names(survey(), &IterationSummary::resumed), ElementsAre());
  track("a word");
  EXPECT_FALSE(survey().tracked);
  EXPECT_THAT(names(survey(), &IterationSummary::resumed), ElementsAre());
  EXPECT_THAT(survey().resume.passed_over.back(), HasSubstr("holds 'a word'"));
}

TEST_F(Survey, ExaminesTheNewestAndWhatDecides) {
  for (const std::uint64_t iteration : {1, 2, 3, 4}) make(iteration);
  fs::copy(path(1), root_ / kReleaseDirectory, fs::copy_options::recursive);
  track("2");
  const RootSurvey found = survey({.newest = 1});
  EXPECT_EQ(found.iterations.front().directory, kReleaseDirectory);
  EXPECT_THAT(states(found), ElementsAre(State::kNotExamined, State::kNotExamined, State::kComplete,
                                         State::kNotExamined, State::kComplete));
  EXPECT_GT(found.iterations[1].saved, 0);
  EXPECT_EQ(survey().iterations[0].state, State::kComplete);
}

TEST_F(Survey, MarksWhatTheNextSaveRemoves) {
  for (const std::uint64_t iteration : {10, 20, 30, 40, 50}) make(iteration);
  fs::remove(path(40) / "__0_0.distcp");
  const auto removed = [&](Retention retention) {
    return names(survey({.newest = 1, .retention = retention}),
                 &IterationSummary::removed_by_policy);
  };
  EXPECT_THAT(removed({}), ElementsAre());
  // The next save keeps itself, 50 and 30; 40 does not count.
  EXPECT_THAT(removed({.keep_last = 3}), ElementsAre("iter_0000010", "iter_0000020"));
  EXPECT_THAT(removed({.keep_last = 3, .keep_every = 20}), ElementsAre("iter_0000010"));
  // The checkpoint that the run has loaded stays, and so do those newer than its next save.
  EXPECT_THAT(removed({.keep_last = 1}),
              ElementsAre("iter_0000010", "iter_0000020", "iter_0000030", "iter_0000040"));
  track("20");
  EXPECT_THAT(removed({.keep_last = 1}), ElementsAre("iter_0000010"));
  EXPECT_THAT(names(survey(), &IterationSummary::removed_by_policy), ElementsAre());
}

TEST_F(Survey, RetentionKeepsWhatALinkLeadsTo) {
  for (const std::uint64_t iteration : {10, 20, 30}) make(iteration);
  fs::create_directory_symlink("iter_0000010", root_ / kReleaseDirectory);
  EXPECT_THAT(
      names(survey({.retention = Retention{.keep_last = 1}}), &IterationSummary::removed_by_policy),
      ElementsAre("iter_0000020"));
}

TEST_F(Survey, ALinkIsAnIterationThatRetentionKeeps) {
  make(20);
  const TempDir elsewhere;
  fs::rename(path(20), elsewhere / "kept");
  fs::create_directory_symlink(elsewhere / "kept", path(10));
  fs::create_directory_symlink(elsewhere / "gone", path(15));
  make(20);
  const RootSurvey found = survey({.retention = Retention{.keep_last = 1}});
  EXPECT_THAT(states(found), ElementsAre(State::kComplete, State::kComplete));
  EXPECT_THAT(names(found, &IterationSummary::removed_by_policy), ElementsAre());
}

TEST_F(Survey, TellsLeftoversFromWorkThatGoesOn) {
  using Work = UnfinishedWork::State;
  const std::string running = staging_token();
  std::string host = running;
  for (int part = 0; part < 3; ++part) host.erase(host.rfind('-'));
  const std::string ended = host + "-4194305-1-abcd";
  for (const std::string& name : std::vector<std::string>{
           ".iter_0000030.saving-" + running, ".iter_0000020.saving-" + ended,
           ".iter_0000040.deleting-host.of.others-1-1-abcd", ".iter_0000010.interrupted-" + ended,
           ".something.saving-" + ended, ".iter_0000020.unknown-" + ended})
    fs::create_directory(root_ / name);
  std::vector<std::pair<std::uint64_t, Work>> found;
  for (const UnfinishedWork& work : survey().unfinished)
    found.emplace_back(work.iteration, work.state);
  EXPECT_THAT(found, ElementsAre(std::pair(10u, Work::kEnded), std::pair(20u, Work::kEnded),
                                 std::pair(30u, Work::kRunning), std::pair(40u, Work::kElsewhere)));
}

}  // namespace
}  // namespace dckpt::root_survey_test
