#include "dist_checkpointing/training_root/removal.h"

#include <gmock/gmock.h>

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/text.h"
#include "operations/convert/convert.h"
#include "strategies/storage/posix.h"
#include "tests/support/code_of.h"
#include "tests/support/temp_dir.h"

namespace dckpt::removal_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

/// The token of a process that has ended.
constexpr const char* kDead = "host-4194305-1-abcd";

class Leftovers : public ::testing::Test {
 protected:
  fs::path make(const std::string& name) {
    fs::create_directories(root_ / name / "sub");
    std::ofstream(root_ / name / "sub" / "file") << "content";
    return root_ / name;
  }
  void make_complete(const std::string& name) {
    StateDict state;
    state["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {4}));
    save(state, root_ / name);
  }
  std::vector<std::string> after_removal() {
    remove_leftovers(root_.path());
    std::vector<std::string> names;
    for (const FileInfo& entry : posix_storage(root_.path())->list("")) names.push_back(entry.name);
    return names;
  }
  /// Damages both; the file "which" is in what is left.
  template <typename Test>
  void leave(const Test& test, const std::string& name, const std::string& token) {
    const fs::path left = root_ / hidden(name, test.purpose, token);
    make_complete(name);
    fs::copy(root_ / name, left, fs::copy_options::recursive);
    std::ofstream(left / "which") << "left";
    test.left(left);
    test.successor(root_ / name);
  }
  static std::string hidden(const std::string& name, const std::string& purpose,
                            const std::string& token = kDead) {
    return "." + name + "." + purpose + "-" + token;
  }

  TempDir root_;
};

TEST_F(Leftovers, OfAReplacedCheckpointGiveBackWhatNoSaveHasWritten) {
  make_complete("iter_0000100");
  for (const char* const purpose : {"saving", "replaced"}) {
    const std::string left = hidden("iter_0000100", purpose);
    make_complete(left);
    std::ofstream(root_ / left / (std::string(purpose) + ".txt")) << "mine";
  }
  make(hidden("iter_0000100", "saving", "host-4194305-2-abcd"));
  EXPECT_THAT(after_removal(), ElementsAre("iter_0000100"));
  EXPECT_TRUE(fs::exists(root_ / "iter_0000100" / "saving.txt"));
  EXPECT_TRUE(fs::exists(root_ / "iter_0000100" / "replaced.txt"));
  EXPECT_FALSE(fs::exists(root_ / "iter_0000100" / "sub")) << "of a save that had not finished";
}

TEST_F(Leftovers, OfDeadProcessesAreRemoved) {
  make(hidden("iter_0000100", "saving"));
  make(hidden("iter_0000100", "deleting"));
  make(hidden("iter_0000100", "replaced"));
  make(hidden("iter_0000300", "saving", "of an unknown form"));
  std::ofstream(root_ / hidden("latest_checkpointed_iteration.txt", "tmp", "0123456789abcdef"))
      << "10";
  make("iter_0000200");
  EXPECT_THAT(after_removal(), ElementsAre("iter_0000200"));
}

TEST_F(Leftovers, OfThisProcessAndForeignNamesStay) {
  const std::vector<std::string> names = {".cache",
                                          ".iter_0000100",
                                          ".iter_100.saving-x",
                                          ".iter_0000100.backup-x",
                                          ".model.saving-x",
                                          hidden("iter_0000100", "saving", staging_token())};
  for (const std::string& name : names) make(name);
  EXPECT_THAT(after_removal(), ::testing::UnorderedElementsAreArray(names));
}

TEST_F(Leftovers, AreRemovedWithoutFollowingLinks) {
  const TempDir elsewhere;
  std::ofstream(elsewhere / "file") << "precious";
  fs::create_directory_symlink(elsewhere.path(), root_ / hidden("iter_0000100", "saving"));
  fs::create_directory_symlink(elsewhere.path(), make(hidden("iter_0000200", "saving")) / "link");
  EXPECT_THAT(after_removal(), ElementsAre());
  EXPECT_TRUE(fs::exists(elsewhere / "file"));
}

TEST_F(Leftovers, AReplacedCheckpointWhoseSuccessorNeverCameIsBack) {
  make_complete(hidden("iter_0000100", "replaced"));
  make_complete(hidden("iter_0000200", "replaced"));
  make_complete("iter_0000200");
  EXPECT_THAT(after_removal(), ElementsAre("iter_0000100", "iter_0000200"));
  EXPECT_TRUE(fs::exists(root_ / "iter_0000100" / "metadata.json"));
}

/// A killed save has left this of iteration 100, beside a checkpoint that has its name.
struct Successor {
  const char* what;
  const char* purpose;                 ///< of what is left
  void (*left)(const fs::path&);       ///< damages what is left
  void (*successor)(const fs::path&);  ///< damages what has the name, or removes it
  std::vector<std::string> after;      ///< names in the root
  bool has_left;                       ///< what has the name then is what was left
};

void keep(const fs::path&) {}
void remove_it(const fs::path& checkpoint) {
  fs::remove_all(checkpoint);
}
void cut(const fs::path& checkpoint) {
  fs::resize_file(checkpoint / "__0_0.distcp", 20);
}
void cut_metadata(const fs::path& checkpoint) {
  fs::resize_file(checkpoint / ".metadata", 20);
}
void remove_file(const fs::path& checkpoint) {
  fs::remove(checkpoint / "__0_0.distcp");
}
void zero(const fs::path& checkpoint) {
  const fs::path file = checkpoint / "__0_0.distcp";
  std::ofstream(file, std::ios::in | std::ios::out | std::ios::binary)
      << std::string(fs::file_size(file), '\0');
}

const std::string kName = "iter_0000100";
const std::string kAside = ".iter_0000100.quarantined-1";
const std::string kReplacedLeft = ".iter_0000100.replaced-host-4194305-1-abcd";
const std::vector<Successor> kSuccessors{
    {"a sound one", "replaced", keep, keep, {kName}, false},
    {"none", "replaced", keep, remove_it, {kName}, true},
    {"zeros", "replaced", keep, zero, {kAside, kName}, true},
    {"zeros, after an exchange", "saving", keep, zero, {kAside, kName}, true},
    {"a truncated one", "replaced", keep, cut, {kAside, kName}, true},
    {"one without metadata", "replaced", keep, cut_metadata, {kAside, kName}, true},
    {"one that misses a file", "replaced", keep, remove_file, {kAside, kName}, true},
    {"neither is sound", "replaced", cut, zero, {kReplacedLeft, kName}, false},
    {"what is left is zeros, and alone", "replaced", zero, remove_it, {kName}, true},
    {"what is left is truncated, and alone", "replaced", cut, remove_it, {kReplacedLeft}, false},
    {"what is left misses a file", "replaced", remove_file, zero, {kName}, false},
    {"an unfinished save beside zeros", "saving", cut, zero, {kName}, false},
    {"a finished save that was never published", "saving", keep, remove_it, {}, false},
};

TEST_F(Leftovers, OfAKilledSaveComeBackInPlaceOfWhatIsNotSound) {
  for (const Successor& test : kSuccessors) {
    SCOPED_TRACE(test.what);
    for (const auto& entry : fs::directory_iterator(root_.path())) fs::remove_all(entry.path());
    leave(test, kName, kDead);
    EXPECT_EQ(after_removal(), test.after);
    EXPECT_EQ(fs::exists(root_ / kName / "which"),
              test.has_left || (test.after.size() == 1 && test.successor == keep))
        << "no save has written this file";
  }
}

/// The token of a process of this host that has ended, and the process unless it has been waited
/// for.
struct EndedProcess {
  EndedProcess() {
    int pipe_ends[2] = {};
    EXPECT_EQ(::pipe(pipe_ends), 0);
    id = ::fork();
    if (id == 0) {
      const std::string mine = staging_token();
      ::_exit(::write(pipe_ends[1], mine.data(), mine.size()) == static_cast<ssize_t>(mine.size())
                  ? 0
                  : 1);
    }
    ::close(pipe_ends[1]);
    char buffer[256] = {};
    for (ssize_t count = 0; (count = ::read(pipe_ends[0], buffer, sizeof buffer)) > 0;)
      token.append(buffer, static_cast<std::size_t>(count));
    ::close(pipe_ends[0]);  // at the end of the pipe, when the process has ended
    siginfo_t ended{};
    ::waitid(P_PID, static_cast<id_t>(id), &ended, WEXITED | WNOWAIT);  // it stays a zombie
  }
  void reap() const { ::waitpid(id, nullptr, 0); }

  pid_t id = 0;
  std::string token;
};

TEST_F(Leftovers, AZombieHasEnded) {
  const EndedProcess process;
  EXPECT_FALSE(made_by_running_process(process.token));
  EXPECT_TRUE(made_by_ended_process(process.token));
  process.reap();
  EXPECT_TRUE(made_by_ended_process(process.token));
  EXPECT_FALSE(made_by_ended_process(staging_token()));
  EXPECT_FALSE(made_by_ended_process("another" + process.token)) << "of another host";
}

TEST_F(Leftovers, ASaveAndAConversionRemoveDeadAttemptsAtTheirOwnTarget) {
  const EndedProcess process;
  process.reap();
  make(hidden("model", "saving", process.token));
  make(hidden("model", "saving"));  // left by another host
  make(hidden("other", "saving", process.token));
  make_complete("model");
  EXPECT_FALSE(fs::exists(root_ / hidden("model", "saving", process.token)));
  EXPECT_TRUE(fs::exists(root_ / hidden("model", "saving")));
  EXPECT_TRUE(fs::exists(root_ / hidden("other", "saving", process.token)));
  convert(root_ / "model", root_ / "other");
  EXPECT_FALSE(fs::exists(root_ / hidden("other", "saving", process.token)));
}

TEST_F(Leftovers, BesideATargetComeBackAlsoWhereItIsThenRefused) {
  const EndedProcess process;
  process.reap();
  make_complete("source");
  for (const bool overwrite : {false, true}) {
    for (const Successor& test : kSuccessors) {
      SCOPED_TRACE(test.what);
      if (!test.has_left || test.after.size() < 2) continue;
      for (const auto& entry : fs::directory_iterator(root_.path()))
        if (entry.path().filename() != "source") fs::remove_all(entry.path());
      leave(test, "model", process.token);
      EXPECT_EQ(code_of([&] {
                  convert(root_ / "source", root_ / "model", {.target = {.overwrite = overwrite}});
                }),
                overwrite ? "no error" : "already-exists");
      EXPECT_TRUE(fs::exists(root_ / ".model.quarantined-1"));
      EXPECT_TRUE(fs::exists(root_ / "model" / "which"));
    }
  }
}

TEST_F(Leftovers, OfADeadPublisherBelongToTheWorkersThatLive) {
  const EndedProcess process;
  process.reap();
  const std::string left = hidden("iter_0000100", "saving", process.token);
  const std::string kept = hidden("iter_0000100", "interrupted", process.token);
  const std::string mine = worker_folder(staging_token());
  for (const std::string& name : {left, kept}) make(name + "/" + mine);
  EXPECT_THAT(after_removal(), ElementsAre(kept, left));
  make_complete("iter_0000100");
  EXPECT_THAT(after_removal(), ElementsAre(kept, left, "iter_0000100"));
  for (const std::string& name : {left, kept}) {
    fs::rename(root_ / name / mine, root_ / name / worker_folder(process.token));
  }
  EXPECT_THAT(after_removal(), ElementsAre("iter_0000100"));
}

TEST_F(Leftovers, AConversionThatIsStoppedLeavesNothing) {
  make_complete("model");
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(code_of([&] {
              convert(root_ / "model", root_ / "copy",
                      {.checks = {.source = false}, .stop = stop.get_token()});
            }),
            "cancelled");
  EXPECT_THAT(after_removal(), ElementsAre("model"));
}

TEST_F(Leftovers, ADeletedCheckpointIsGoneAndLinksAreNotDeleted) {
  const auto storage = posix_storage(root_.path());
  fs::create_directory_symlink(make("elsewhere"), root_ / "iter_0000200");
  make("iter_0000100");
  delete_checkpoint(*storage, "iter_0000100");
  EXPECT_EQ(code_of([&] { delete_checkpoint(*storage, "iter_0000200"); }), "invalid-argument");
  EXPECT_EQ(code_of([&] { delete_checkpoint(*storage, "iter_0000300"); }), "invalid-argument");
  EXPECT_THAT(after_removal(), ElementsAre("elsewhere", "iter_0000200"));
}

/// Returns a token with another field in place of the one of its boot and PID namespace.
std::string with_table(const std::string& token, const std::string& table) {
  std::vector<std::string> parts = split(token, '-');
  const std::size_t at = parts.size() - 4;
  std::string changed;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string& part = i == at ? table : parts[i];
    changed += (changed.empty() || part.empty() ? "" : "-") + part;
  }
  return changed;
}

std::string table_of(const std::string& token) {
  const std::vector<std::string> parts = split(token, '-');
  return parts[parts.size() - 4];
}

// Containers share the name of a host, and each has a process 1.
TEST_F(Leftovers, OfAnotherContainerOrBootBelongToAnotherHost) {
  const EndedProcess process;
  process.reap();
  const std::string mine = table_of(staging_token());
  std::string other_boot = mine;
  other_boot[1] = other_boot[1] == '0' ? '1' : '0';
  const std::string other_space = mine + "9";
  for (const std::string& table : {other_boot, other_space, std::string()}) {
    SCOPED_TRACE(table);
    const std::string ended = with_table(process.token, table);
    EXPECT_FALSE(made_by_ended_process(ended));
    EXPECT_FALSE(made_by_running_process(ended));
    EXPECT_EQ(state_of_owner(ended), UnfinishedWork::State::kElsewhere) << "doctor leaves it";
    EXPECT_EQ(owner_of(ended)->host, owner_of(process.token)->host);
    EXPECT_EQ(owner_of(ended)->process, static_cast<std::uint64_t>(process.id));
    // An earlier release wrote no table: its running process is found, and not touched.
    EXPECT_EQ(made_by_running_process(with_table(staging_token(), table)), table.empty());

    make_complete("model");
    make(hidden("copy", "saving", ended));
    convert(root_ / "model", root_ / "copy");
    EXPECT_TRUE(fs::exists(root_ / hidden("copy", "saving", ended)));
    fs::remove_all(root_ / "copy");
    const ConvertReport resumed =
        convert(root_ / "model", root_ / "copy", {.target = {.resume = true}});
    ASSERT_FALSE(resumed.findings.empty());
    EXPECT_THAT(resumed.findings.back().message,
                ::testing::HasSubstr("rename it to '" + hidden("copy", "interrupted", ended)));
    for (const char* const name : {"model", "copy"}) fs::remove_all(root_ / name);
    fs::remove_all(root_ / hidden("copy", "saving", ended));
  }
}

TEST_F(Leftovers, StayWhileAJobThatIsNotVisibleHasTheRoot) {
  const EndedProcess process;
  process.reap();
  const std::string left = hidden("model", "saving", process.token);
  make(left);
  const auto storage = posix_storage(root_.path());
  const std::string elsewhere = "job " + with_table(staging_token(), table_of(process.token) + "9");
  {
    const auto lock = storage->lock(".dckpt.lock", elsewhere);
    make_complete("model");
    EXPECT_TRUE(fs::exists(root_ / left));
  }
  fs::remove_all(root_ / "model");
  make_complete("model");
  EXPECT_FALSE(fs::exists(root_ / left)) << "the lock is free";
}

TEST(StagingToken, LeavesRoomForTheLongestName) {
  const std::string host(42, 'h');
  const std::string token = host + "-b0123abcdn4294967295-4194304-99999999999-0123abcd";
  EXPECT_LE(std::string(140, 'n').size() + std::string("..interrupted-").size() + token.size(),
            255u);
}

TEST(StagingToken, TellsWhetherItsProcessRuns) {
  const std::string mine = staging_token();
  EXPECT_TRUE(made_by_running_process(mine));
  EXPECT_NE(mine, staging_token());
  EXPECT_FALSE(made_by_running_process("other-host-" + mine)) << "another host";
  for (const char* text : {"", "-", "host", "host-1", "host-1-2-3", "host-x-y-z"})
    EXPECT_FALSE(made_by_running_process(text)) << text;
  std::string earlier = mine;
  const std::size_t last = earlier.rfind('-');
  earlier.insert(last, "9");
  EXPECT_FALSE(made_by_running_process(earlier)) << "another process that had the same number";
}

}  // namespace
}  // namespace dckpt::removal_test
