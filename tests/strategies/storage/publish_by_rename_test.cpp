#include "strategies/storage/hidden_sibling.h"
#include "strategies/storage/publication.h"
#include "strategies/storage/staged_file.h"

#include <gmock/gmock.h>

#include <map>

#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/storage_name.h"
#include "strategies/storage/memory.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/simulated_disk.h"

namespace dckpt::publish_by_rename_test {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Path → content of every file below a directory, as a loader would find it.
using Files = std::map<std::string, std::string>;

const Files kNothing;
const Files kOld = {{"a", "old a"}, {"sub/b", "old b"}, {".metadata", "old"}};
const Files kNew = {{"a", "new a"}, {"sub/b", "new b"}, {"sub/c", "new c"}, {".metadata", "new"}};

void write(Storage& storage, const std::string& name, const std::string& content) {
  const auto file = storage.create(name);
  file->append(as_bytes(content));
  file->sync();
  file->close();
}

Files files_in(const Storage& storage, const std::string& directory) {
  Files files;
  if (!storage.stat(directory)) return files;
  for (const FileInfo& entry : storage.list(directory)) {
    if (entry.kind == FileInfo::Kind::kDirectory) {
      for (const auto& [name, content] : files_in(storage, join_name(directory, entry.name)))
        files[join_name(entry.name, name)] = content;
    } else {
      files[entry.name] = as_text(read_file(*storage.open(join_name(directory, entry.name)), 1000));
    }
  }
  return files;
}

std::vector<std::string> names_in(const Storage& storage, const std::string& directory) {
  std::vector<std::string> names;
  for (const FileInfo& entry : storage.list(directory)) names.push_back(entry.name);
  return names;
}

void save(const std::shared_ptr<Storage>& storage, const Files& files, Publication::Options options,
          const std::string& token = "job") {
  Publication publication = Publication::begin(storage, "run/iter_5", token, options);
  storage->make_directory(publication.staging() + "/sub");
  for (const auto& [name, content] : files)
    write(*storage, join_name(publication.staging(), name), content);
  publication.commit();
}

class Publish : public ::testing::Test {
 protected:
  Publish() {
    set_log_sink(
        [this](LogLevel, std::string_view message) { log_ += std::string(message) + "\n"; });
  }
  ~Publish() override { set_log_sink({}); }

  std::shared_ptr<Storage> storage_ = memory_storage();
  std::string log_;
};

TEST_F(Publish, TheDirectoryAppearsCompleteAndNothingElseStays) {
  save(storage_, kNew, {});
  EXPECT_EQ(files_in(*storage_, "run/iter_5"), kNew);
  EXPECT_THAT(names_in(*storage_, "run"), ElementsAre("iter_5"));
}

TEST_F(Publish, NothingIsVisibleBeforeTheCommit) {
  Publication publication = Publication::begin(storage_, "run/iter_5", "job", {});
  write(*storage_, publication.staging() + "/a", "x");
  EXPECT_FALSE(storage_->stat("run/iter_5"));
  EXPECT_EQ(publication.staging(), "run/.iter_5.saving-job");
}

TEST_F(Publish, AnUncommittedSaveIsRemoved) {
  { const Publication publication = Publication::begin(storage_, "run/iter_5", "job", {}); }
  EXPECT_TRUE(names_in(*storage_, "run").empty());
}

TEST_F(Publish, ADirectoryThatHoldsSomethingIsKeptUnlessAsked) {
  save(storage_, kOld, {});
  try {
    save(storage_, kNew, {});
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAlreadyExists);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("allow overwriting"), HasSubstr("run/iter_5")));
  }
  EXPECT_EQ(files_in(*storage_, "run/iter_5"), kOld);
  save(storage_, kNew, {.overwrite = true});
  EXPECT_EQ(files_in(*storage_, "run/iter_5"), kNew);
  EXPECT_THAT(names_in(*storage_, "run"), ElementsAre("iter_5"));
}

TEST_F(Publish, AnEmptyDirectoryIsReplacedWithoutBeingAsked) {
  storage_->make_directory("run/iter_5");
  save(storage_, kNew, {});
  EXPECT_EQ(files_in(*storage_, "run/iter_5"), kNew);
}

TEST_F(Publish, AnEmptyDirectoryThatGetsAFileMeanwhileIsKept) {
  storage_->make_directory("run/iter_5");
  Publication publication = Publication::begin(storage_, "run/iter_5", "job", {});
  write(*storage_, "run/iter_5/notes.txt", "mine");
  EXPECT_THROW(publication.commit(), CheckpointError);
  EXPECT_EQ(files_in(*storage_, "run/iter_5"), (Files{{"notes.txt", "mine"}}));
}

TEST_F(Publish, AFileOfThatNameIsNeverReplaced) {
  storage_->make_directory("run");
  write(*storage_, "run/iter_5", "mine");
  EXPECT_THROW(save(storage_, kNew, {.overwrite = true}), CheckpointError);
  EXPECT_EQ(as_text(read_file(*storage_->open("run/iter_5"), 10)), "mine");
}

TEST_F(Publish, LeftoversOfOtherJobsStayAndThoseOfThisOneGo) {
  storage_->make_directory("run");
  for (const std::string job : {"job", "other"}) {
    storage_->make_directory("run/.iter_5.saving-" + job);
    write(*storage_, "run/.iter_5.saving-" + job + "/stale", "");
  }
  save(storage_, kNew, {});
  EXPECT_EQ(files_in(*storage_, "run/iter_5"), kNew);
  EXPECT_THAT(names_in(*storage_, "run"), ElementsAre(".iter_5.saving-other", "iter_5"));
}

TEST_F(Publish, CommitWorksOnce) {
  Publication publication = Publication::begin(storage_, "run/iter_5", "job", {});
  publication.commit();
  EXPECT_THROW(publication.commit(), CheckpointError);
}

TEST_F(Publish, BadTokensAreRefused) {
  EXPECT_THROW(Publication::begin(storage_, "x", "", {}), CheckpointError);
  EXPECT_THROW(Publication::begin(storage_, "x", "a/b", {}), CheckpointError);
}

TEST_F(Publish, WithoutSyncNoDirectoryIsSynced) {
  const auto disk = std::make_shared<SimulatedDisk>();
  save(disk, kNew, {.sync = false});
  EXPECT_EQ(files_in(*disk->after({PowerCut::Kind::kLosesUnsynced}), "run/iter_5"), kNothing);
  EXPECT_EQ(files_in(*disk->after({PowerCut::Kind::kKeepsUnsynced}), "run/iter_5"), kNew);
}

/// Returns every kind of power cut, the mixed one with several seeds.
std::vector<PowerCut> power_cuts() {
  std::vector<PowerCut> cuts = {{PowerCut::Kind::kLosesUnsynced}, {PowerCut::Kind::kKeepsUnsynced}};
  for (unsigned seed = 0; seed < 12; ++seed) cuts.push_back({PowerCut::Kind::kMixed, seed});
  return cuts;
}

struct Sweep {
  std::string name;
  Fault::Kind kind;
  bool can_exchange;
  Files before;          ///< files at run/iter_5
  bool empty_directory;  ///< in place of nothing
};

void PrintTo(const Sweep& sweep, std::ostream* out) {
  *out << sweep.name;
}

class PublishSweep : public ::testing::TestWithParam<Sweep> {
 protected:
  PublishSweep() {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  ~PublishSweep() override { set_log_sink({}); }
};

/// Fails each storage operation of a save in turn, until no fault fires. Checks what a loader would
/// find while the machine keeps running, and after a power cut at that moment.
TEST_P(PublishSweep, ThePreviousCheckpointOrTheNewOneIsCompleteAtEveryFaultPoint) {
  const Sweep& sweep = GetParam();
  bool saved = false;
  std::uint64_t at = 0;
  while (!saved) {
    SCOPED_TRACE("fault at operation " + std::to_string(++at));
    ASSERT_LT(at, 1000u);
    const auto disk = std::make_shared<SimulatedDisk>();
    if (!sweep.before.empty()) save(disk, sweep.before, {}, "earlier");
    if (sweep.empty_directory) disk->make_directory("run/iter_5");
    const auto faulty =
        std::make_shared<FaultyStorage>(disk, Fault{sweep.kind, at}, sweep.can_exchange);
    bool reported = false;
    try {
      save(faulty, kNew, {.overwrite = !sweep.before.empty()});
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("injected"));
      reported = true;
    }
    saved = !faulty->fired();
    EXPECT_FALSE(saved && reported);

    if (sweep.kind == Fault::Kind::kError) {
      EXPECT_EQ(files_in(*disk, "run/iter_5"),
                reported ? sweep.before : kNew);  // rolled back, or done
    } else if (sweep.kind == Fault::Kind::kErrorAfterEffect) {
      EXPECT_THAT(files_in(*disk, "run/iter_5"), AnyOf(sweep.before, kNew));
      const std::vector<Files> places = {files_in(*disk, "run/iter_5"),
                                         files_in(*disk, "run/.iter_5.saving-job"),
                                         files_in(*disk, "run/.iter_5.replaced-job")};
      if (reported) {
        EXPECT_THAT(places, ::testing::Contains(sweep.before))
            << "a save that failed has not removed the previous one";
      }
    }
    for (const PowerCut& cut : power_cuts()) {
      const auto survivor = disk->after(cut);
      const Files found = files_in(*survivor, "run/iter_5");
      if (!reported) {
        EXPECT_EQ(found, kNew) << "a save that returned is durable";
      } else if (!sweep.can_exchange && found.empty()) {
        EXPECT_THAT(files_in(*survivor, "run/.iter_5.replaced-job"), sweep.before)
            << "the old one is complete in its hiding place";
      } else {
        EXPECT_THAT(found, AnyOf(sweep.before, kNew));
      }
    }
  }
  EXPECT_GT(at, 20u);
}

std::vector<Sweep> sweeps() {
  std::vector<Sweep> all;
  const std::map<std::string, Fault::Kind> kinds = {
      {"Error", Fault::Kind::kError},
      {"ErrorAfterEffect", Fault::Kind::kErrorAfterEffect},
      {"Crash", Fault::Kind::kCrash}};
  for (const auto& [name, kind] : kinds) {
    all.push_back({name + "New", kind, true, kNothing, false});
    all.push_back({name + "EmptyDirectory", kind, true, kNothing, true});
    all.push_back({name + "Overwrite", kind, true, kOld, false});
    all.push_back({name + "OverwriteWithoutExchange", kind, false, kOld, false});
    all.push_back({name + "EmptyDirectoryWithoutExchange", kind, false, kNothing, true});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(AllFaults, PublishSweep, ::testing::ValuesIn(sweeps()),
                         [](const auto& test) { return test.param.name; });

TEST(AdoptedPublication, WhatAnotherJobHasTakenUpIsNotResumedAgain) {
  const auto storage = memory_storage();
  storage->make_directory("run");
  storage->make_directory("run/.iter_5.interrupted-a");
  const Publication first =
      Publication::adopt(storage, "run/iter_5", ".iter_5.interrupted-a", "b", {});
  try {
    const Publication second =
        Publication::adopt(storage, "run/iter_5", ".iter_5.interrupted-a", "c", {});
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
    EXPECT_THAT(error.what(), HasSubstr("another job has continued or removed it"));
  }
}

// A network file system may lose the answer.
TEST(AdoptedPublication, GoesOnIfTheRenameTookEffectBesideAnError) {
  const auto storage = memory_storage();
  storage->make_directory("run/.iter_5.interrupted-a");
  for (std::uint64_t at = 1; storage->stat("run/.iter_5.interrupted-a"); ++at) {
    const auto faulty =
        std::make_shared<FaultyStorage>(storage, Fault{Fault::Kind::kErrorAfterEffect, at});
    try {
      const Publication adopted =
          Publication::adopt(faulty, "run/iter_5", ".iter_5.interrupted-a", "b", {});
      EXPECT_EQ(adopted.staging(), "run/.iter_5.saving-b");
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("injected"));
    }
    ASSERT_TRUE(faulty->fired());
  }
}

TEST(PutFile, ReplacesTheFileAndLeavesNothingElse) {
  const auto storage = memory_storage();
  storage->put("latest.txt", as_bytes("1"));
  storage->put("latest.txt", as_bytes("22"));
  EXPECT_EQ(as_text(read_file(*storage->open("latest.txt"), 10)), "22");
  EXPECT_THAT(names_in(*storage, ""), ElementsAre("latest.txt"));
}

TEST(PutFile, IsOldOrNewAtEveryFaultPointAndDurableWhenItReturns) {
  set_log_sink([](LogLevel, std::string_view) {});
  for (const Fault::Kind kind :
       {Fault::Kind::kError, Fault::Kind::kErrorAfterEffect, Fault::Kind::kCrash}) {
    bool written = false;
    for (std::uint64_t at = 1; !written; ++at) {
      SCOPED_TRACE("fault at operation " + std::to_string(at));
      const auto disk = std::make_shared<SimulatedDisk>();
      disk->put("latest.txt", as_bytes("100"));
      FaultyStorage faulty(disk, {kind, at});
      bool reported = false;
      try {
        faulty.put("latest.txt", as_bytes("200"));
      } catch (const CheckpointError&) {
        reported = true;
      }
      written = !faulty.fired();
      for (const PowerCut& cut : power_cuts()) {
        const Bytes content = read_file(*disk->after(cut)->open("latest.txt"), 10);
        EXPECT_THAT(as_text(content),
                    reported ? ::testing::Matcher<std::string_view>(AnyOf("100", "200"))
                             : ::testing::Matcher<std::string_view>("200"));
      }
    }
  }
  set_log_sink({});
}

TEST(HiddenSiblings, AreTakenApartAsTheyWerePutTogether) {
  for (const HiddenSibling& sibling :
       {HiddenSibling{"iter_0000100", "saving", "host-1-2-ab"},
        HiddenSibling{"latest.txt", "tmp", "0f"}, HiddenSibling{"a.b.c", "replaced", "x.y-z"}}) {
    EXPECT_EQ(parse_hidden_sibling(to_string(sibling)), sibling);
  }
  for (const char* name : {"", ".", "..", "..a-b", ".a", ".a.", ".a.b", ".a.b-", ".a.-t", ".a.B-t",
                           "a.saving-t", ".cache.d"})
    EXPECT_EQ(parse_hidden_sibling(name), std::nullopt) << name;
}

}  // namespace
}  // namespace dckpt::publish_by_rename_test
