#include "operations/upkeep/diagnosis.h"

#include <gmock/gmock.h>

#include "dist_checkpointing/checkpointer/checkpointer.h"
#include "strategies/comm/communicator.h"
#include "strategies/storage/publication.h"
#include "tests/operations/upkeep/kept_root.h"
#include "tests/support/expect_error.h"

namespace dckpt::testing::diagnosis_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Owner = UnfinishedWork::State;

class Diagnosis : public KeptRoot {
 protected:
  RootDiagnosis diagnose(bool deep = false) const {
    return diagnose_root(root_.path(), {.deep = deep});
  }
  static std::vector<Verdict> verdicts(const RootDiagnosis& found) {
    std::vector<Verdict> verdicts;
    for (const IterationSummary& summary : found.survey.iterations)
      verdicts.push_back(verdict_of(summary.state));
    return verdicts;
  }
};

TEST_F(Diagnosis, SaysOfEachIterationWhetherItIsComplete) {
  make_sick();
  const RootDiagnosis found = diagnose();
  EXPECT_THAT(verdicts(found),
              ElementsAre(Verdict::kComplete, Verdict::kIncomplete, Verdict::kDamaged));
  EXPECT_THAT(found.survey.iterations[2].why, HasSubstr("it is truncated"));
  EXPECT_THAT(found.tracker_problem, HasSubstr("names 'iter_0000003', which is damaged"));
  EXPECT_EQ(found.survey.resume.checkpoint->directory, "iter_0000001");
  EXPECT_EQ(found.megatron.directory, "iter_0000003");
  EXPECT_FALSE(found.ok());
  EXPECT_EQ(found.wasted_bytes(),
            found.survey.iterations[1].bytes + found.survey.iterations[2].bytes);
}

TEST_F(Diagnosis, OfAHealthyRootFindsNothing) {
  make(1);
  make("release");
  track("1\n");
  const RootDiagnosis found = diagnose(true);
  EXPECT_TRUE(found.ok());
  EXPECT_EQ(found.megatron.directory, "iter_0000001");
  EXPECT_EQ(found.wasted_bytes(), 0U);
  EXPECT_THAT(found.leftovers, IsEmpty());
}

TEST_F(Diagnosis, NamesWhatLooksLikeAnIterationButIsNone) {
  make(1);
  for (const char* const name : {"iter_60", "iter_abc", "iterations"})
    fs::create_directory(root_ / name);
  write("iter_0000002", "a file");
  fs::create_directory_symlink("iter_0000001", path(3));
  fs::create_directory_symlink("nowhere", path(4));
  fs::create_directory_symlink("nowhere", root_ / kReleaseDirectory);
  const RootDiagnosis found = diagnose();
  EXPECT_THAT(found.not_counted, ElementsAre("iter_0000002", "iter_0000004", "iter_60", "iter_abc",
                                             kReleaseDirectory));
  EXPECT_TRUE(found.ok());
}

TEST_F(Diagnosis, DeepFindsWhatOnlyTheBytesShow) {
  make(1);
  const fs::path file = path(1) / "__0_0.distcp";
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(bytes), {}};
  const std::size_t zeros = content.find(std::string(16, '\0'), 60);
  bytes.seekp(static_cast<std::streamoff>(zeros));
  bytes << "X";
  bytes.close();
  EXPECT_THAT(verdicts(diagnose()), ElementsAre(Verdict::kComplete));
  EXPECT_THAT(verdicts(diagnose(true)), ElementsAre(Verdict::kDamaged));
}

TEST_F(Diagnosis, DataThatAreZerosAreDamageWithoutDeepToo) {
  for (const std::uint64_t iteration : {1, 2}) make(iteration);
  zero(2);
  track("2");
  const RootDiagnosis found = diagnose();
  EXPECT_THAT(verdicts(found), ElementsAre(Verdict::kComplete, Verdict::kDamaged));
  EXPECT_EQ(found.survey.resume.checkpoint->directory, "iter_0000002") << "a run takes it";
  EXPECT_THAT(found.tracker_problem, HasSubstr("names 'iter_0000002', which is damaged"));
  EXPECT_EQ(survey_root(root_.path()).iterations[1].state, IterationSummary::State::kComplete);
}

TEST_F(Diagnosis, WhatIsKnownIsNotExaminedAgainUnlessItHasChanged) {
  for (const std::uint64_t iteration : {1, 2}) make(iteration);
  RootDiagnosis known = diagnose(true);
  known.survey.iterations[0].why = "it is known";
  const auto why = [&] {
    return diagnose_root(root_.path(), {.deep = true, .known = &known.survey})
        .survey.iterations[0]
        .why;
  };
  EXPECT_EQ(why(), "it is known");
  write("iter_0000001/notes.txt", "new");
  EXPECT_EQ(why(), "");
}

TEST_F(Diagnosis, MegatronBridgesTrackerIsToNameTheSame) {
  for (const std::uint64_t iteration : {1, 10}) make(iteration);
  fs::copy_file(fs::path(DCKPT_TEST_DATA) / "bridge" / kBridgeTrackerFile,
                root_ / kBridgeTrackerFile);
  EXPECT_EQ(diagnose().bridge_problem, "") << "it is alone";
  track("10");
  EXPECT_EQ(diagnose().bridge_problem, "");
  track("1");
  EXPECT_THAT(diagnose().bridge_problem,
              HasSubstr("latest_train_state.pt names 'iter_0000010', and Megatron-Bridge reads it "
                        "before latest_checkpointed_iteration.txt, which names 'iter_0000001'"));
  EXPECT_FALSE(diagnose().ok());
}

TEST_F(Diagnosis, OldLeftoversOfOtherHostsAreWaste) {
  make(1);
  const std::string left = ".iter_0000002.saving-" + elsewhere();
  fs::create_directory(root_ / left);
  write(left + "/file", "12345");
  EXPECT_EQ(diagnose().wasted_bytes(), 0U) << "its job may be running";
  make_old(root_ / left);
  EXPECT_EQ(diagnose().wasted_bytes(), 5U);
  EXPECT_EQ(diagnose().leftovers[0].work.state, Owner::kElsewhere);
}

TEST_F(Diagnosis, ReadsTheTrackerAsMegatronDoes) {
  make(1);
  const auto megatron = [&](const std::string& text) {
    track(text);
    return diagnose().megatron.directory.value_or("");
  };
  EXPECT_EQ(megatron(" 1 \n"), "iter_0000001");
  EXPECT_EQ(megatron("iter_0000001"), "");
  EXPECT_EQ(megatron("1.0"), "");
  EXPECT_EQ(megatron("2"), "");
  EXPECT_EQ(megatron("release"), "");
  EXPECT_EQ(megatron(std::string(9000, '1')), "");
  EXPECT_THAT(diagnose().tracker_problem, HasSubstr("9,000 bytes"));
  EXPECT_THAT(diagnose().megatron.why, AllOf(HasSubstr("was not read"), HasSubstr("9,000 bytes")));
}

TEST_F(Diagnosis, FollowsALinkInPlaceOfTheTrackerAsMegatronDoes) {
  for (const std::uint64_t iteration : {1, 2}) make(iteration);
  const auto megatron = [&](const fs::path& target) {
    fs::remove(root_ / kTrackerFile);
    fs::create_symlink(target, root_ / kTrackerFile);
    return diagnose().megatron;
  };
  write("notes", "1");
  EXPECT_EQ(megatron("notes").directory, "iter_0000001");
  EXPECT_THAT(diagnose().tracker_problem, HasSubstr("not a regular file"));
  write("notes", "x");
  EXPECT_EQ(megatron("notes").why,
            "it stops at latest_checkpointed_iteration.txt, which holds 'x'");
  for (const char* const target : {"nowhere", "iter_0000001"})
    EXPECT_EQ(megatron(target).why, "there is no file latest_checkpointed_iteration.txt");
}

TEST_F(Diagnosis, AnUnfinishedIterationThatHasJustChangedMayBeInWork) {
  make(1);
  fs::create_directory(path(2));
  write("iter_0000002/__0_0.distcp", "the first bytes");
  RootDiagnosis found = diagnose();
  EXPECT_THAT(found.may_be_written, ElementsAre("iter_0000002"));
  EXPECT_TRUE(found.ok());
  EXPECT_EQ(found.wasted_bytes(), 0U);
  make_old(path(2));
  found = diagnose();
  EXPECT_THAT(found.may_be_written, IsEmpty());
  EXPECT_FALSE(found.ok());
}

TEST_F(Diagnosis, AClaimSaysWhoWritesInPlace) {
  fs::create_directory(path(2));
  const std::string claim = std::string("iter_0000002/") + kClaimPrefix + "1";
  const auto of = [&](const std::string& token) {
    write(claim, token);
    make_old(path(2));
    return diagnose();
  };
  EXPECT_THAT(verdicts(of(mine())), ElementsAre(Verdict::kBeingSaved));
  EXPECT_TRUE(of(mine()).ok());
  EXPECT_THAT(of(elsewhere()).may_be_written, ElementsAre("iter_0000002"));
  const RootDiagnosis found = of(ended());
  EXPECT_THAT(found.may_be_written, IsEmpty());
  ASSERT_EQ(found.leftovers.size(), 1U);
  EXPECT_EQ(found.leftovers[0].work.name, claim);
  EXPECT_EQ(found.leftovers[0].work.state, Owner::kEnded);
}

TEST_F(Diagnosis, TellsLeftoversOfTheDeadFromWorkOfTheLiving) {
  make(1);
  for (const std::string& token : {mine(), ended(), elsewhere()})
    fs::create_directory(root_ / (".iter_0000002.saving-" + token));
  write(".iter_0000002.saving-" + ended() + "/file", "12345");
  make(".iter_0000003.replaced-" + ended());
  fs::create_directory(root_ / (".release.saving-" + ended()));
  write(".latest_checkpointed_iteration.txt.tmp-1234", "2");
  write("notes.txt", "mine");
  std::map<std::string, Leftover> left;
  for (const Leftover& leftover : diagnose().leftovers) left[leftover.work.name] = leftover;
  EXPECT_EQ(left.size(), 6U);
  EXPECT_EQ(left[".iter_0000002.saving-" + ended()].bytes, 5U);
  EXPECT_EQ(left[".iter_0000002.saving-" + ended()].work.state, Owner::kEnded);
  EXPECT_EQ(left[".iter_0000002.saving-" + elsewhere()].work.state, Owner::kElsewhere);
  EXPECT_TRUE(left[".iter_0000003.replaced-" + ended()].comes_back);
  EXPECT_EQ(left[".latest_checkpointed_iteration.txt.tmp-1234"].work.state, Owner::kElsewhere);
}

TEST_F(Diagnosis, FilesOfADeadPublisherBelongToTheOtherWorkers) {
  const fs::path left = root_ / (".iter_0000002.saving-" + ended());
  const auto owner = [&](const std::string& worker) {
    fs::create_directories(left / (".work-" + worker));
    return diagnose().leftovers.at(0).work.state;
  };
  EXPECT_EQ(owner(ended()), Owner::kEnded);
  EXPECT_EQ(owner(elsewhere()), Owner::kElsewhere);
  EXPECT_EQ(owner(mine()), Owner::kRunning);
}

TEST_F(Diagnosis, NamesTheJobThatHasTheRoot) {
  EXPECT_FALSE(diagnose().owner);
  const auto comm = single_rank();
  {
    Checkpointer checkpointer(root_.path(), {}, *comm);
    checkpointer.claim();
    EXPECT_EQ(diagnose().owner->state, Owner::kRunning);
  }
  write(".dckpt.lock", "job " + ended());
  EXPECT_EQ(diagnose().owner->state, Owner::kEnded);
}

TEST_F(Diagnosis, SaysWhereThePointersOfAutomodelLead) {
  for (const char* const step : {"epoch_0_step_19", "epoch_1_step_39"})
    make(std::string(step) + "/model");
  fs::create_directory_symlink("epoch_1_step_39", root_ / "LATEST");
  write("LOWEST_VAL", "epoch_0_step_9\n");
  const auto message = [&] { return std::string(error_of([&] { diagnose(); }).what()); };
  EXPECT_THAT(message(), HasSubstr("epoch_1_step_39/model'; LATEST names 'epoch_1_step_39'; "
                                   "LOWEST_VAL names 'epoch_0_step_9', which does not exist"));
  fs::remove_all(root_ / "epoch_1_step_39");
  EXPECT_THAT(message(), HasSubstr("epoch_0_step_19/model'; LATEST leads nowhere; "));
}

TEST_F(Diagnosis, RefusesWhatIsNoTrainingRoot) {
  EXPECT_TRUE(diagnose().ok()) << "an empty one is a new run's";
  write("file", "");
  EXPECT_THAT(error_of([&] { diagnose(); }).what(), HasSubstr("has 1 entry, but no iteration"));
  make(1);
  EXPECT_THAT(error_of([&] { (void)diagnose_root(path(1)); }).what(),
              HasSubstr("it is a checkpoint; name the directory above it"));
  EXPECT_EQ(error_of([&] { (void)diagnose_root(root_ / "nowhere"); }).code(), ErrorCode::kIo);
  EXPECT_FALSE(fs::exists(root_ / "nowhere"));
}

}  // namespace
}  // namespace dckpt::testing::diagnosis_test
