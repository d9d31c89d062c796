#include "operations/upkeep/treatment.h"

#include <gmock/gmock.h>

#include "dist_checkpointing/training_root/removal.h"
#include "strategies/storage/forwarding.h"
#include "strategies/storage/posix.h"
#include "strategies/storage/publication.h"
#include "tests/operations/upkeep/kept_root.h"
#include "tests/support/expect_error.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/object_store.h"
#include "tests/support/random.h"

namespace dckpt::testing::treatment_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Treatments : public KeptRoot {
 protected:
  TreatmentReport treat(Treatment treatment, bool apply = true) const {
    treatment.apply = apply;
    return treat_root(root_.path(), treatment);
  }
  static std::string resumed(const TreatmentReport& report) {
    return report.resume.checkpoint ? report.resume.checkpoint->directory : "";
  }
  ErrorCode refused(const Treatment& treatment) const {
    const std::vector<std::string> before = names();
    const ErrorCode code = error_of([&] { (void)treat(treatment); }).code();
    EXPECT_EQ(names(), before);
    return code;
  }
  void copy_bridge_state(const std::string& to) const {
    fs::copy_file(fs::path(DCKPT_TEST_DATA) / "bridge" / kBridgeTrackerFile, root_ / to,
                  fs::copy_options::overwrite_existing);
  }
};

TEST_F(Treatments, ADryRunChangesNothing) {
  make_sick();
  fs::create_directory(root_ / (".iter_0000004.saving-" + ended()));
  const std::vector<std::string> before = names();
  const TreatmentReport report =
      treat({.repair_tracker = true, .quarantine = 3, .clean = true}, false);
  EXPECT_EQ(report.steps.size(), 3U);
  EXPECT_FALSE(report.applied);
  EXPECT_EQ(names(), before);
  EXPECT_EQ(tracker(), "3");
  EXPECT_FALSE(fs::exists(root_ / ".dckpt.lock"));
}

TEST_F(Treatments, TheTrackerIsRepairedAndItsOldContentComesBack) {
  for (const std::string& broken : std::vector<std::string>{"3", "rubbish", "", "9", "release"}) {
    SCOPED_TRACE(broken);
    for (const std::string& name : names()) fs::remove_all(root_ / name);
    make_sick();
    track(broken);
    const TreatmentReport report = treat({.repair_tracker = true});
    EXPECT_EQ(resumed(report), "iter_0000001");
    EXPECT_EQ(tracker(), "1");
    EXPECT_EQ(report.steps.front().undo, "--restore tracker");
    EXPECT_EQ(diagnose_root(root_.path()).tracker_problem, "");
    EXPECT_THAT(treat({.repair_tracker = true}).steps, IsEmpty()) << "the second time";
    (void)treat({.restore_tracker = true});
    EXPECT_EQ(tracker(), broken);
    EXPECT_EQ(refused({.restore_tracker = true}), ErrorCode::kIncomplete);
  }
}

TEST_F(Treatments, ATrackerThatNamesACompleteOneStays) {
  for (const std::uint64_t iteration : {1, 2}) make(iteration);
  track("1");
  const TreatmentReport report = treat({.repair_tracker = true});
  EXPECT_THAT(report.steps, IsEmpty());
  EXPECT_THAT(report.remarks, ElementsAre(HasSubstr("which is complete, and stays as it is")));
  track("iter_0000001");  // Megatron stops at it
  (void)treat({.repair_tracker = true});
  EXPECT_EQ(tracker(), "1");
  fs::remove(root_ / kTrackerFile);
  (void)treat({.repair_tracker = true});
  EXPECT_EQ(tracker(), "2");
}

TEST_F(Treatments, TheTrackerNamesOnlyWhatVerifyAccepts) {
  for (const std::uint64_t iteration : {1, 2}) make(iteration);
  const fs::path file = path(2) / "__0_0.distcp";
  std::string content = read("iter_0000002/__0_0.distcp");
  content[content.find(std::string(16, '\0'), 60)] = 'X';
  write("iter_0000002/__0_0.distcp", content);
  track("5");
  EXPECT_EQ(treat({.repair_tracker = true}, false).steps.front().to, "2");
  EXPECT_EQ(treat({.repair_tracker = true, .diagnose = {.deep = true}}, false).steps.front().to,
            "1");
  content[0] = 'X';  // of the head of a chunk, which a run that resumes does not look at
  write("iter_0000002/__0_0.distcp", content);
  EXPECT_EQ(treat({.repair_tracker = true}, false).steps.front().to, "1");
  fs::remove_all(path(1));
  EXPECT_EQ(refused({.repair_tracker = true}), ErrorCode::kIncomplete);
  make("release");
  (void)treat({.repair_tracker = true, .diagnose = {.deep = true}});
  EXPECT_EQ(tracker(), "release");
}

TEST_F(Treatments, ADirectoryInPlaceOfTheTrackerIsSetAsideWhole) {
  make(1);
  fs::create_directories(root_ / kTrackerFile / "something");
  (void)treat({.repair_tracker = true});
  EXPECT_EQ(tracker(), "1");
  (void)treat({.restore_tracker = true});
  EXPECT_TRUE(fs::is_directory(root_ / kTrackerFile / "something"));
}

TEST_F(Treatments, ATrackerThatIsALinkIsRepairedToWhatItHolds) {
  for (const std::uint64_t iteration : {1, 2}) make(iteration);
  write("notes", "1");
  fs::create_symlink("notes", root_ / kTrackerFile);
  EXPECT_EQ(resumed(treat({.repair_tracker = true})), "iter_0000001");
  EXPECT_EQ(tracker(), "1");
  EXPECT_EQ(read("notes"), "1");
  (void)treat({.restore_tracker = true});
  EXPECT_TRUE(fs::is_symlink(root_ / kTrackerFile));
}

TEST_F(Treatments, AQuarantinedIterationComesBackAsItWas) {
  make_sick();
  write("iter_0000003/notes.txt", "mine");
  const TreatmentReport report = treat({.repair_tracker = true, .quarantine = 3});
  EXPECT_FALSE(fs::exists(path(3)));
  EXPECT_EQ(tracker(), "1");
  EXPECT_EQ(resumed(report), "iter_0000001");
  EXPECT_EQ(report.steps.front().undo, "--restore 3");
  EXPECT_EQ(refused({.quarantine = 3}), ErrorCode::kIncomplete);
  EXPECT_THAT(error_of([&] { (void)treat({.quarantine = 3}); }).what(),
              HasSubstr("it is set aside already"));
  EXPECT_THAT(treat({.clean = true}).steps, IsEmpty()) << "what is set aside is no leftover";
  make(3);
  EXPECT_EQ(refused({.restore = 3}), ErrorCode::kAlreadyExists);
  (void)treat({.quarantine = 3});
  (void)treat({.restore = 3});
  EXPECT_EQ(verdict_of(diagnose_root(root_.path()).find("iter_0000003")->state), Verdict::kComplete)
      << "the one that was set aside last";
  fs::remove_all(path(3));
  (void)treat({.restore = 3});
  EXPECT_EQ(fs::file_size(path(3) / "__0_0.distcp"), 20U);
  EXPECT_EQ(read("iter_0000003/notes.txt"), "mine");
  EXPECT_EQ(refused({.restore = 3}), ErrorCode::kIncomplete);
}

TEST_F(Treatments, WhatTheTrackerFindsThroughALinkIsNotSetAsideInSilence) {
  for (const std::uint64_t iteration : {2, 3}) make(iteration);
  fs::create_directory_symlink("iter_0000003", path(4));
  EXPECT_THAT(treat({.quarantine = 4}, false).remarks, IsEmpty());
  track("4");
  const TreatmentReport plan = treat({.quarantine = 3}, false);
  EXPECT_THAT(plan.remarks,
              ElementsAre("'iter_0000004' leads to 'iter_0000003', and will lead nowhere"));
  EXPECT_EQ(plan.steps.back().to, "2") << "a run would stop without a new tracker";
  EXPECT_EQ(resumed(treat({.repair_tracker = true, .quarantine = 3})), "iter_0000002");
  EXPECT_EQ(tracker(), "2");
}

TEST_F(Treatments, QuarantineOfWhatTheTrackerNamesRepairsItOrIsRefused) {
  for (const std::uint64_t iteration : {1, 2}) make(iteration);
  track("2");
  EXPECT_EQ(resumed(treat({.quarantine = 2})), "iter_0000001");
  EXPECT_EQ(tracker(), "1");
  EXPECT_EQ(refused({.quarantine = 1}), ErrorCode::kIncomplete);
  EXPECT_THAT(error_of([&] { (void)treat({.quarantine = 1}); }).what(),
              HasSubstr("there is no other complete checkpoint that it could name"));
}

/// A root with iterations 1 and 2 to be treated, and what is there afterwards.
struct Sequence {
  const char* what;
  const char* tracker;  ///< content, before
  Treatment treatment;
  std::vector<TreatmentStep::Kind> steps;
  const char* tracker_after;
  std::uint64_t resumed;
};

TEST_F(Treatments, EachStepIsPlannedForWhatTheStepsBeforeItLeave) {
  using Kind = TreatmentStep::Kind;
  // Iteration 3 is damaged, and what it has replaced is sound; iteration 4 is missing, and what was
  // being replaced is there.
  const std::vector<Sequence> sequences{
      {"what the tracker names comes back",
       "4",
       {.repair_tracker = true, .clean = true},
       {Kind::kSetAside, Kind::kBringBack, Kind::kBringBack},
       "4",
       4},
      {"and in place of what is damaged",
       "3",
       {.repair_tracker = true, .clean = true},
       {Kind::kSetAside, Kind::kBringBack, Kind::kBringBack},
       "3",
       3},
      {"the newest is one that comes back",
       "9",
       {.repair_tracker = true, .clean = true},
       {Kind::kSetAside, Kind::kBringBack, Kind::kBringBack, Kind::kWriteTracker},
       "4",
       4},
      {"it comes back in place of what is set aside",
       "3",
       {.quarantine = 3, .clean = true},
       {Kind::kSetAside, Kind::kBringBack, Kind::kBringBack},
       "3",
       3},
      {"a tracker alone", "3", {.repair_tracker = true}, {Kind::kWriteTracker}, "2", 2},
      {"nothing is deleted for what is not sound",
       "3",
       {.prune = Retention{.keep_last = 1}},
       {Kind::kDelete},
       "3",
       3},
      {"what comes back counts",
       "4",
       {.clean = true, .prune = Retention{.keep_last = 2}},
       {Kind::kSetAside, Kind::kBringBack, Kind::kBringBack, Kind::kDelete},
       "4",
       4},
  };
  for (const Sequence& test : sequences) {
    SCOPED_TRACE(test.what);
    for (const std::string& name : names()) fs::remove_all(root_ / name);
    for (const std::uint64_t iteration : {1, 2, 3}) make(iteration);
    zero(3);
    for (const char* const name : {"iter_0000003", "iter_0000004"})
      make(std::string(".") + name + ".replaced-" + ended());
    track(test.tracker);
    const TreatmentReport plan = treat(test.treatment, false);
    std::vector<Kind> steps;
    for (const TreatmentStep& step : plan.steps) steps.push_back(step.kind);
    EXPECT_EQ(steps, test.steps);
    const TreatmentReport report = treat(test.treatment);
    EXPECT_EQ(tracker(), test.tracker_after);
    EXPECT_EQ(resumed(report), iteration_directory(test.resumed));
    EXPECT_FALSE(find_unsound(path(2)));
  }
}

TEST_F(Treatments, MegatronBridgesTrackerIsRepairedAlong) {
  for (const std::uint64_t iteration : {9, 10, 11}) make(iteration);
  copy_bridge_state("iter_0000010/train_state.pt");
  copy_bridge_state(kBridgeTrackerFile);
  write(kBridgeTrackerFile, "rubbish");
  track("11");
  (void)treat({.quarantine = 11});
  EXPECT_EQ(tracker(), "10");
  EXPECT_EQ(read(kBridgeTrackerFile), read("iter_0000010/train_state.pt"));
  EXPECT_TRUE(diagnose_root(root_.path()).ok());
  (void)treat({.quarantine = 10});
  EXPECT_EQ(tracker(), "9");
  EXPECT_FALSE(fs::exists(root_ / kBridgeTrackerFile)) << "9 has no train state";
  (void)treat({.restore_tracker = true});
  EXPECT_EQ(tracker(), "10");
  EXPECT_TRUE(fs::exists(root_ / kBridgeTrackerFile));
}

TEST_F(Treatments, SavesAndTheirLeftoversLeaveQuarantineAlone) {
  make(1);
  (void)treat({.quarantine = 1});
  make(1);
  remove_leftovers(root_.path());
  EXPECT_THAT(names(), ElementsAre(".iter_0000001.quarantined-1", "iter_0000001"));
}

TEST_F(Treatments, WhatALiveJobMayUseIsNotTouched) {
  make(1);
  fs::create_directory(path(2));
  EXPECT_EQ(refused({.quarantine = 2}), ErrorCode::kAborted) << "it has just been made";
  const std::string claim = std::string("iter_0000002/") + kClaimPrefix;
  write(claim + "1", ended());
  write(claim + "2", mine());
  make_old(path(2));
  EXPECT_EQ(refused({.quarantine = 2, .all_jobs_ended = true}), ErrorCode::kAborted);
  const std::string alive = ".iter_0000003.saving-" + mine();
  fs::create_directory(root_ / alive);
  fs::create_directory(root_ / (".iter_0000003.saving-" + elsewhere()));
  EXPECT_THAT(treat({.clean = true}).steps, IsEmpty());
  EXPECT_TRUE(fs::exists(root_ / (claim + "1"))) << "claims of one directory are counted";
  EXPECT_EQ(treat({.clean = true, .all_jobs_ended = true}).steps.size(), 1U);
  EXPECT_THAT(names(), ElementsAre(alive, "iter_0000001", "iter_0000002"));
  write(claim + "2", elsewhere());
  EXPECT_EQ(refused({.quarantine = 2}), ErrorCode::kAborted);
  EXPECT_EQ(treat({.quarantine = 2, .all_jobs_ended = true}).steps.size(), 1U);
}

TEST_F(Treatments, CleanRemovesWhatTheDeadHaveLeftAndNothingElse) {
  make(1);
  make(4);
  const std::string dead = ended();
  fs::create_directory(root_ / (".iter_0000002.saving-" + dead));
  fs::create_directory(root_ / (".release.deleting-" + dead));
  fs::create_directory(root_ / (".iter_0000005.interrupted-" + dead));
  make(".iter_0000003.replaced-" + dead);
  make(".iter_0000004.replaced-" + dead);
  write(std::string("iter_0000001/") + kClaimPrefix + "1", dead);
  write("iter_0000001/.dckpt.remove.lock", "job " + dead);
  fs::create_directory(path(6));
  write(std::string("iter_0000006/") + kClaimPrefix + "1", dead);
  write("iter_0000006/__0_0.distcp", "some");
  write("iter_0000006/notes.txt", "mine");
  const std::vector<std::string> foreign{".model.saving-" + dead, "notes",
                                         ".iter_0000002.backup-1"};
  for (const std::string& name : foreign) fs::create_directory(root_ / name);
  const TreatmentReport report = treat({.clean = true});
  EXPECT_EQ(report.steps.size(), 8U);
  EXPECT_THAT(names(),
              ElementsAre(".iter_0000002.backup-1", ".model.saving-" + dead, "iter_0000001",
                          "iter_0000003", "iter_0000004", "iter_0000006", "notes"));
  EXPECT_THAT(read("iter_0000006/notes.txt"), "mine");
  EXPECT_FALSE(fs::exists(path(6) / "__0_0.distcp"));
  EXPECT_FALSE(fs::exists(path(1) / ".dckpt.remove.lock"));
  EXPECT_THAT(treat({.clean = true}).steps, IsEmpty()) << "the second time";
}

TEST_F(Treatments, WhatAPoolHasLeftIsNotCalledWorkOfAnotherHost) {
  make(1);
  const std::string left = ".iter_0000002.saving-workers-123";
  fs::create_directories(root_ / left / worker_folder(ended()));
  EXPECT_THAT(treat({.clean = true}).remarks,
              ElementsAre(HasSubstr("a pool of workers, whose hosts are not known here")));
  EXPECT_TRUE(fs::exists(root_ / left));
  (void)treat({.clean = true, .all_jobs_ended = true});
  EXPECT_FALSE(fs::exists(root_ / left));
}

TEST_F(Treatments, CleanTakesTheClaimOfADamagedCheckpointAndNoMore) {
  make_sick();
  write(std::string("iter_0000002/") + kClaimPrefix + "1", ended());
  write(std::string("iter_0000003/") + kClaimPrefix + "1", ended());
  EXPECT_EQ(treat({.quarantine = 2, .clean = true}).steps.size(), 2U);
  EXPECT_TRUE(fs::exists(path(3) / "__0_0.distcp"));
  EXPECT_THAT(names(), ElementsAre(".iter_0000002.quarantined-1", "iter_0000001", "iter_0000003",
                                   kTrackerFile));
}

TEST_F(Treatments, AJobThatHasTheRootKeepsOthersOut) {
  make_sick();
  const auto lock = posix_storage(root_.path())->lock(".dckpt.lock", "job " + mine());
  EXPECT_EQ(refused({.quarantine = 3}), ErrorCode::kAborted);
  EXPECT_EQ(treat({.quarantine = 3}, false).steps.size(), 2U) << "looking is allowed";
}

/// Every change fails, as on a file system that is mounted read-only.
class ReadOnly final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  std::shared_ptr<Storage> subtree(const std::string& name) override {
    return std::make_shared<ReadOnly>(storage_->subtree(name));
  }
  std::unique_ptr<WritableFile> create(const std::string&, const CreateOptions&) override {
    refuse();
  }
  void make_directory(const std::string&) override { refuse(); }
  void rename(const std::string&, const std::string&) override { refuse(); }
  void remove_all(const std::string&) override { refuse(); }
  void put(const std::string&, ByteView) override { refuse(); }
  std::unique_ptr<StorageLock> lock(const std::string&, const std::string&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    throw CheckpointError(ErrorCode::kIo, "Read-only file system");
  }
};

TEST_F(Treatments, WhoTreatsARootHasNotSavedThere) {
  make_sick();
  (void)treat_root(root_.path(), {.repair_tracker = true, .apply = true}, [&](const auto&) {
    EXPECT_THAT(diagnose_root(root_.path()).owner->name, HasSubstr("doctor "));
  });
  write(".dckpt.lock", "doctor " + ended());
  EXPECT_FALSE(diagnose_root(root_.path()).owner);
}

TEST_F(Treatments, AReadOnlyRootCanBeExamined) {
  make_sick();
  const Location root(std::make_shared<ReadOnly>(posix_storage(root_.path())));
  const Treatment treatment{.repair_tracker = true, .quarantine = 3, .clean = true};
  EXPECT_EQ(treat_root(root, treatment).steps.size(), 2U);
  Treatment applied = treatment;
  applied.apply = true;
  EXPECT_EQ(error_of([&] { (void)treat_root(root, applied); }).code(), ErrorCode::kIo);
}

TEST_F(Treatments, AStorageWithoutRenameHasNoQuarantine) {
  const auto objects =
      std::make_shared<ObjectStore>(ObjectStore::Pace{}, posix_storage(root_.path()));
  make_sick();
  const Location root(objects);
  const auto treat = [&](Treatment treatment) {
    treatment.apply = treatment.all_jobs_ended = true;
    (void)treat_root(root, treatment);
  };
  EXPECT_EQ(error_of([&] { (void)treat_root(root, {.quarantine = 3, .apply = true}); }).code(),
            ErrorCode::kUnsupported);
  EXPECT_EQ(error_of([&] { treat({.quarantine = 3}); }).code(), ErrorCode::kUnsupported);
  treat({.repair_tracker = true});
  EXPECT_EQ(tracker(), "1");
  treat({.restore_tracker = true});
  EXPECT_EQ(tracker(), "3");
  EXPECT_EQ(objects->forbidden(), 0);
}

TEST_F(Treatments, WhateverFailsTheRootCanBeTreatedAgain) {
  make_sick();
  fs::create_directory(root_ / (".iter_0000004.saving-" + ended()));
  const TempDir sick;
  fs::copy(root_.path(), sick.path(), fs::copy_options::recursive);
  testing::Sweep sweep(9);
  for (std::uint64_t at = 1;; at = sweep.after(at)) {
    SCOPED_TRACE(sweep.trace(at));
    for (const std::string& name : names()) fs::remove_all(root_ / name);
    fs::copy(sick.path(), root_.path(), fs::copy_options::recursive);
    make_old(path(2));
    const auto faulty = std::make_shared<FaultyStorage>(posix_storage(root_.path()),
                                                        Fault{Fault::Kind::kCrash, at});
    const Treatment treatment{
        .repair_tracker = true, .quarantine = 3, .clean = true, .apply = true};
    try {
      (void)treat_root(Location(faulty), treatment);
    } catch (const CheckpointError&) {
    }
    const bool fired = faulty->fired();
    // Nothing but the leftover is lost, and the rest can be done now.
    EXPECT_TRUE(fs::exists(path(3)) || fs::exists(root_ / ".iter_0000003.quarantined-1"));
    Treatment rest{.repair_tracker = true, .clean = true, .apply = true};
    if (fs::exists(path(3))) rest.quarantine = 3;
    EXPECT_EQ(resumed(treat(rest)), "iter_0000001");
    EXPECT_EQ(tracker(), "1");
    if (!fired) return;
  }
}

class Prune : public KeptRoot {
 protected:
  Prune() {
    for (const std::uint64_t iteration : {1, 2, 3, 4, 5}) make(iteration);
  }
  TreatmentReport prune(const Retention& retention, bool apply = false) const {
    return treat_root(root_.path(), {.prune = retention, .apply = apply});
  }
  static std::vector<std::string> removed(const TreatmentReport& report) {
    std::vector<std::string> names;
    for (const TreatmentStep& step : report.steps) names.push_back(step.name);
    return names;
  }
};

TEST_F(Prune, ARunThatResumesFromAReleaseResumesFromNoIteration) {
  make("release");
  write("latest_checkpointed_iteration.txt", "release");
  const TreatmentReport report = prune({.keep_last = 2});
  EXPECT_EQ(report.diagnosis.survey.resume.checkpoint->directory, "release");
  EXPECT_THAT(report.remarks, ::testing::Each(::testing::Not(HasSubstr("iter_0000000"))));
  EXPECT_THAT(removed(report), ::testing::Not(::testing::Contains("release")));
}

TEST_F(Prune, FreesWhatItHasShown) {
  const TreatmentReport plan = prune({.keep_last = 2, .keep_every = 2});
  EXPECT_THAT(removed(plan), ElementsAre("iter_0000001", "iter_0000003"));
  EXPECT_EQ(plan.steps[0].bytes, plan.diagnosis.survey.iterations[0].bytes);
  EXPECT_EQ(names().size(), 5U);
  EXPECT_EQ(removed(prune({.keep_last = 2, .keep_every = 2}, true)), removed(plan));
  EXPECT_THAT(names(), ElementsAre("iter_0000002", "iter_0000004", "iter_0000005"));
  EXPECT_THAT(removed(prune({.keep_last = 2, .keep_every = 2}, true)), IsEmpty());
}

TEST_F(Prune, KeepsWhatIsInUseOrNotItsOwn) {
  track("4");
  make("release");
  const TempDir elsewhere_;
  fs::rename(path(1), elsewhere_ / "kept");
  fs::create_directory_symlink(elsewhere_ / "kept", path(1));
  write(std::string("iter_0000002/") + kClaimPrefix + "1", mine());
  const TreatmentReport report = prune({.keep_last = 1}, true);
  EXPECT_THAT(removed(report), ElementsAre("iter_0000003"));
  EXPECT_THAT(report.remarks,
              ElementsAre(HasSubstr("it is a link"), HasSubstr("a job may be at work in it")));
  EXPECT_EQ(names().size(), 6U);
}

TEST_F(Prune, KeepsWhatALinkLeadsTo) {
  for (const bool has_tracker : {false, true}) {
    for (const std::string& name : names()) fs::remove_all(root_ / name);
    for (const std::uint64_t iteration : {1, 2, 3}) make(iteration);
    fs::create_directory_symlink("iter_0000001", path(4));
    fs::create_directory_symlink("iter_0000004", root_ / "latest");
    if (has_tracker) track("4");
    const TreatmentReport plan = prune({.keep_last = 1});
    EXPECT_THAT(removed(plan), ElementsAre("iter_0000002", "iter_0000003"));
    EXPECT_THAT(plan.remarks,
                ElementsAre("'iter_0000001' stays: 'iter_0000004', 'latest' lead to it"));
    EXPECT_EQ(removed(prune({.keep_last = 1}, true)), removed(plan));
    EXPECT_TRUE(fs::exists(path(4) / ".metadata"));
  }
}

TEST_F(Prune, CountsALinkAndItsTargetOnce) {
  for (const std::uint64_t iteration : {6, 7})
    fs::create_directory_symlink(root_ / "iter_0000005", path(iteration));
  EXPECT_THAT(removed(prune({.keep_last = 2})),
              ElementsAre("iter_0000001", "iter_0000002", "iter_0000003"));
  track("6");
  EXPECT_THAT(removed(prune({.keep_last = 2})),
              ElementsAre("iter_0000001", "iter_0000002", "iter_0000003"));
}

TEST_F(Prune, CountsOnlyCompleteOnes) {
  fs::resize_file(path(4) / "__0_0.distcp", 20);
  EXPECT_THAT(removed(prune({.keep_last = 2})), ElementsAre("iter_0000001", "iter_0000002"));
}

TEST_F(Prune, KeepsSoundOnesWhereTheNewestAreNot) {
  zero(5);
  const TreatmentReport plan = prune({.keep_last = 1}, true);
  EXPECT_THAT(removed(plan), ElementsAre("iter_0000001", "iter_0000002", "iter_0000003"));
  EXPECT_THAT(plan.remarks, ElementsAre(HasSubstr(
                                "'iter_0000005', from which a run would resume, does not count, "
                                "because it is not sound")));
  zero(4);
  EXPECT_THAT(removed(prune({.keep_last = 1}, true)), IsEmpty()) << "no sound one would stay";
}

TEST_F(Prune, KeepsSoundOnesOnRequestByAllTheirBytes) {
  std::string content = read("iter_0000005/__0_0.distcp");
  content[content.find(std::string(16, '\0'), 60)] = 'X';
  write("iter_0000005/__0_0.distcp", content);
  EXPECT_EQ(removed(prune({.keep_last = 1})).size(), 4U);
  const Treatment deep{.prune = Retention{.keep_last = 1}, .diagnose = {.deep = true}};
  EXPECT_EQ(removed(treat_root(root_.path(), deep)).size(), 3U);
}

TEST_F(Prune, KeepsWhatIsNamed) {
  write("best.txt", "iter_0000002");
  const TreatmentReport report = prune({.keep_last = 1, .keep = {"3"}}, true);
  EXPECT_THAT(removed(report), ElementsAre("iter_0000001", "iter_0000004"));
  EXPECT_THAT(report.remarks, ElementsAre("'iter_0000002' stays: 'best.txt' names it"));
}

TEST_F(Prune, RefusesToGuess) {
  EXPECT_EQ(error_of([&] { (void)prune({}); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { (void)prune({.keep_every = 2}); }).code(), ErrorCode::kInvalidArgument);
  const auto lock = posix_storage(root_.path())->lock(".dckpt.lock", "job " + mine());
  EXPECT_EQ(error_of([&] { (void)prune({.keep_last = 1}, true); }).code(), ErrorCode::kAborted);
  track("rubbish");
  EXPECT_THAT(error_of([&] { (void)prune({.keep_last = 1}); }).what(),
              HasSubstr("a run would not resume here, so nothing is removed: "));
  EXPECT_EQ(names().size(), 6U);
}

}  // namespace
}  // namespace dckpt::testing::treatment_test
