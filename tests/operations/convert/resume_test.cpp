// Conversions that are interrupted and resumed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <utility>

#include "dist_checkpointing/training_root/removal.h"
#include "operations/convert/convert.h"
#include "operations/convert/workers/pool_notes.h"
#include "operations/convert/workers/pooled_copy.h"
#include "operations/convert/workers/worker_survey.h"
#include "strategies/comm/threads.h"
#include "strategies/registry/registry.h"
#include "strategies/storage/posix.h"
#include "tests/operations/convert/conversions.h"
#include "tests/support/child_process.h"
#include "tests/support/expect_error.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/golden.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"

namespace dckpt::resume_test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using testing::content;
using testing::Ended;
using testing::golden;
using ::testing::HasSubstr;
using testing::kForThree;
using testing::kHf;
using testing::killed_at;
using testing::kRanks;
using testing::kZarr;
using testing::kZstd;

void expect_error(const std::function<void()>& body, ErrorCode code, const std::string& text) {
  const CheckpointError error = testing::error_of(body);
  EXPECT_EQ(error.code(), code) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(text));
}

class Resume : public ::testing::Test {
 protected:
  Resume() {
    fs::copy(golden("mcore-0.14-flattened-tp2pp2dp2"), at("source"), fs::copy_options::recursive);
  }

  fs::path at(const std::string& name) const { return directory_ / name; }

  ConvertReport run(ConvertOptions options, bool resume) const {
    options.target.resume = resume;
    return convert(at("source"), at("out"), options);
  }

  /// Runs the conversion in a process that is killed before its `number`-th change of a file.
  Ended run_until(std::uint64_t number, const ConvertOptions& options, bool resume) const {
    return killed_at(number, [&](const std::function<void()>& start) {
      start();
      run(options, resume);
    });
  }

  /// Returns the data files that an interrupted conversion has left where they are found again,
  /// according to its notes, and their inodes.
  std::map<std::string, ino_t> finished() const {
    PoolNotes notes;
    std::vector<fs::path> left;
    for (const auto& entry : fs::directory_iterator(directory_.path())) {
      if (!entry.path().filename().string().starts_with(".out.")) continue;
      left.push_back(entry.path());
      const auto pool = pool_of(*posix_storage(directory_.path()), entry.path().filename());
      const auto storage = pool ? pool->directory() : posix_storage(entry.path());
      if (storage->stat_target("")) read_notes(*storage, storage->list(""), notes);
    }
    std::map<std::string, ino_t> files;
    for (const auto& [name, unit] : notes.done) {
      for (const fs::path& directory : left) {
        for (const std::string& place : {unit.path, name}) {
          struct ::stat status {};
          if (::stat((directory / place).c_str(), &status) == 0) files[name] = status.st_ino;
        }
      }
    }
    return files;
  }

  /// Returns the notes of an interrupted conversion of one process.
  fs::path notes() const {
    for (const auto& entry : fs::recursive_directory_iterator(directory_.path()))
      if (is_notes(entry.path().filename().string())) return entry.path();
    throw std::runtime_error("there are no notes");
  }

  void remove_all_but_source() const {
    for (const auto& entry : fs::directory_iterator(directory_.path()))
      if (entry.path() != at("source")) fs::remove_all(entry.path());
  }

  std::size_t hidden() const {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(directory_.path()))
      count += entry.path().filename().string().starts_with(".");
    return count;
  }

  TempDir directory_;
};

struct Format {
  const char* name;
  ConvertOptions options;
  std::int64_t longest_gap = 21;  ///< changes between two kills
};
void PrintTo(const Format& format, std::ostream* out) {
  *out << format.name;
}

class ResumeTo : public Resume, public ::testing::WithParamInterface<Format> {
 protected:
  /// Kills a conversion at any point, by itself or as the worker of a pool, and resumes it.
  void sweep(bool pooled) const {
    run(GetParam().options, false);
    const auto expected = content(at("out"));
    fs::remove_all(at("out"));
    ConvertOptions options = GetParam().options;
    if (pooled) {
      options.limits.io.threads = 1;
      options.workers.directory = Location(at("pool"));
    }
    ConvertOptions others = GetParam().options;
    others.workers.lease = options.workers.lease = std::chrono::seconds(1);
    std::uint64_t most_kept = 0;
    std::uint64_t files = 0;
    testing::Sweep sweep(pooled ? 3 * GetParam().longest_gap : GetParam().longest_gap);
    for (std::uint64_t call = 1;; call = sweep.after(call)) {
      SCOPED_TRACE(sweep.trace(call));
      const Ended ended = run_until(call, options, false);
      if (ended == Ended::kNotTraceable)
        GTEST_SKIP() << "this system does not let a process trace its children";
      ASSERT_NE(ended, Ended::kFailed);
      if (!fs::exists(at("out"))) {
        const auto before = finished();
        const ConvertReport report = run(others, true);
        EXPECT_GE(report.kept_files, before.size());
        EXPECT_LE(report.kept_files, report.files);
        most_kept = std::max(most_kept, report.kept_files);
        files = report.files;
      }
      ASSERT_EQ(content(at("out")), expected);
      if (ended == Ended::kFinished) break;
      remove_rest(options);
      ASSERT_EQ(hidden(), 0U);
    }
    EXPECT_GT(files, 2U);
    EXPECT_GE(most_kept + 2, files) << "late kills leave little to write";
  }

 private:
  /// Removes the result, and what the dead process left after publishing as the next one does.
  void remove_rest(const ConvertOptions& options) const {
    if (fs::exists(at("pool/job"))) {
      if (survey_workers(at("pool")).published) run(options, false);  // finds it
      remove_workers(at("pool"));
    }
    fs::remove_all(at("pool"));
    fs::remove_all(at("out"));
    run(GetParam().options, false);
    fs::remove_all(at("out"));
  }
};

const ConvertOptions kAsStored{.target = {.ranks = {}}};

TEST_P(ResumeTo, AfterAKillAtAnyPointTheRestIsWrittenAndTheBytesAreTheSame) {
  sweep(false);
}

TEST_P(ResumeTo, TheSameForAWorkerOfAPool) {
  sweep(true);
}

TEST_P(ResumeTo, AConversionThatIsKilledAgainAndAgainArrives) {
  run(GetParam().options, false);
  const auto expected = content(at("out"));
  fs::remove_all(at("out"));
  testing::Random random;
  SCOPED_TRACE(random.trace(0));
  Ended ended = Ended::kKilled;
  for (int round = 0; ended == Ended::kKilled && !fs::exists(at("out")); ++round) {
    const auto limit = round < 10 ? 80 : 1000;
    ended =
        run_until(static_cast<std::uint64_t>(random.between(1, limit)), GetParam().options, true);
  }
  if (ended == Ended::kNotTraceable) GTEST_SKIP();
  ASSERT_NE(ended, Ended::kFailed);
  EXPECT_EQ(content(at("out")), expected);
}

TEST_P(ResumeTo, AfterAnOperationFailedAnywhereTheRestIsWritten) {
  run(GetParam().options, false);
  const auto expected = content(at("out"));
  fs::remove_all(at("out"));
  ConvertOptions options = GetParam().options;
  options.target.resume = true;
  testing::Sweep sweep(GetParam().longest_gap);
  for (std::uint64_t number = 1;; number = sweep.after(number)) {
    SCOPED_TRACE(sweep.trace(number));
    const auto faulty = std::make_shared<FaultyStorage>(posix_storage(directory_.path()),
                                                        Fault{Fault::Kind::kError, number});
    try {
      convert(at("source"), Location(faulty, "out"), options);
    } catch (const CheckpointError& error) {
      ASSERT_THAT(error.what(), HasSubstr("injected"));
    }
    if (!fs::exists(at("out"))) run(options, true);
    ASSERT_EQ(content(at("out")), expected);
    ASSERT_EQ(hidden(), 0U);
    fs::remove_all(at("out"));
    if (!faulty->fired()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ResumeTo,
                         ::testing::Values(Format{"ForThree", kForThree},
                                           Format{"AsStored", kAsStored}, Format{"Hf", kHf},
                                           Format{"Ranks", kRanks, 9}, Format{"Zarr", kZarr},
                                           Format{"Zstd", kZstd}),
                         [](const auto& format) { return format.param.name; });

/// A conversion interrupted when some of its files are finished.
class InterruptedConversion : public Resume {
 protected:
  void SetUp() override {
    for (std::uint64_t call = 5; finished().size() < 3; call += 5) {
      const Ended ended = run_until(call, kAsStored, false);
      if (ended == Ended::kNotTraceable) GTEST_SKIP();
      ASSERT_EQ(ended, Ended::kKilled);
    }
  }
  fs::path left() const { return directory_ / unfinished_attempts(at("out")).at(0); }
};

TEST_F(InterruptedConversion, WhatIsFinishedIsNotWrittenAgain) {
  const auto before = finished();
  ConvertOptions dry = kAsStored;
  dry.dry_run = true;
  EXPECT_EQ(run(dry, true).kept_files, before.size());
  EXPECT_EQ(run(kAsStored, true).kept_files, before.size());
  for (const auto& [name, inode] : before) {
    struct ::stat status {};
    ASSERT_EQ(::stat((at("out") / name).c_str(), &status), 0);
    EXPECT_EQ(status.st_ino, inode) << name;
  }
  EXPECT_EQ(hidden(), 0U);
}

TEST_F(InterruptedConversion, AnotherSourceOrOtherOptionsAreRefusedAndSaid) {
  ConvertOptions other = kAsStored;
  other.target.ranks = 2;
  expect_error([&] { run(other, true); }, ErrorCode::kMismatch, "ranks: as stored then, 2 now");
  EXPECT_EQ(hidden(), 1U) << "it is still there";
  const fs::path file = at("source") / "common.pt";
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(1));
  expect_error([&] { run(kAsStored, true); }, ErrorCode::kMismatch,
               "file 'common.pt' has been changed, or copied anew");
  EXPECT_EQ(run(kAsStored, false).kept_files, 0U);
  EXPECT_EQ(hidden(), 0U) << "without resume it is removed";
}

TEST_F(InterruptedConversion, AFileThatIsNotAsItWasLeftIsWrittenAnew) {
  const auto before = finished();
  const fs::path file = left() / before.begin()->first;
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(300) << "damage";
  EXPECT_EQ(run(kAsStored, true).kept_files, before.size() - 1);
  EXPECT_EQ(run({.target = {.overwrite = true}}, false).kept_files, 0U) << "the result is sound";
}

TEST_F(InterruptedConversion, NotesThatBreakOffLoseTheirEnd) {
  const std::size_t before = finished().size();
  fs::resize_file(notes(), fs::file_size(notes()) - 1);
  EXPECT_EQ(run(kAsStored, true).kept_files, before - 1);
}

TEST_F(Resume, TheJournalOfAnEarlierBuildIsRefused) {
  const fs::path left = at(".out.interrupted-1");
  fs::create_directory(left);
  std::ofstream(left / ".conversion-1.journal") << "0 {}";
  expect_error([&] { run({}, true); }, ErrorCode::kUnsupported, "which only that build can resume");
  EXPECT_TRUE(fs::exists(left));
  run({}, false);
  EXPECT_EQ(hidden(), 0U) << "without resume it is removed";
}

TEST_F(Resume, ThePoolOfAnEarlierBuildIsRefused) {
  fs::create_directory(at(".out.saving-workers-1"));
  std::ofstream(at(".out.saving-workers-1") / ".pool") << at("pool").string();
  fs::create_directory(at("pool"));
  std::ofstream(at("pool") / "job.json") << "{}";
  expect_error([&] { run({}, true); }, ErrorCode::kUnsupported,
               "an earlier build of dckpt has made this pool");
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(Resume, WhatTheRanksOfAJobHaveLeftIsContinuedAndTheirPoolIsRemoved) {
  const ConvertOptions options{.target = {.ranks = 24}, .limits = {.io = {.threads = 1}}};
  for (std::uint64_t call = 100; finished().empty(); call += 20) {
    remove_all_but_source();
    const Ended ended = killed_at(call, [&](const std::function<void()>& start) {
      start();
      run_ranks(2, [&](Communicator& comm) { convert(at("source"), at("out"), options, comm); });
    });
    if (ended == Ended::kNotTraceable) GTEST_SKIP();
    ASSERT_EQ(ended, Ended::kKilled);
  }
  EXPECT_EQ(hidden(), 2U) << "the pool and its files";
  ConvertOptions rest = options;
  rest.workers.lease = std::chrono::seconds(1);
  EXPECT_GT(run(rest, true).kept_files, 0U);
  EXPECT_TRUE(fs::exists(at("out/.metadata")));
  EXPECT_EQ(hidden(), 0U);
}

// All files are whole by then, and only lack their last name.
TEST_F(Resume, OfAPublisherThatDiedBeforeTheRenameEveryFileIsKept) {
  ConvertOptions shared{.target = {.ranks = 3},
                        .limits = {.io = {.threads = 1}},
                        .workers = {.directory = Location(at("pool"))}};
  Ended ended = Ended::kKilled;
  const auto is_published_by = [&](std::uint64_t call) {
    remove_all_but_source();
    ended = run_until(call, shared, false);
    return fs::exists(at("out"));
  };
  std::uint64_t before = 1, behind = 64;
  while (!is_published_by(behind)) {
    if (ended == Ended::kNotTraceable) GTEST_SKIP();
    ASSERT_EQ(ended, Ended::kKilled);
    before = std::exchange(behind, 2 * behind);
  }
  while (behind - before > 1) {
    const std::uint64_t middle = (before + behind) / 2;
    (is_published_by(middle) ? behind : before) = middle;
  }
  ASSERT_FALSE(is_published_by(before));
  ConvertOptions rest{.target = {.ranks = 3}, .workers = {.lease = std::chrono::seconds(1)}};
  EXPECT_EQ(run(rest, true).kept_files, 3U);
  EXPECT_TRUE(fs::exists(at("out/.metadata")));
  EXPECT_EQ(hidden(), 0U);
  ASSERT_TRUE(is_published_by(behind));  // and died before it said so
  EXPECT_EQ(run(rest, true).kept_files, 3U);
  EXPECT_EQ(hidden(), 0U);
}

TEST_F(Resume, APoolOfAnotherConversionIsRefusedWithWhatDiffers) {
  ConvertOptions shared{.target = {.ranks = 24}, .workers = {.directory = Location(at("pool"))}};
  for (std::uint64_t call = 60; finished().empty(); call += 10) {
    remove_all_but_source();
    const Ended ended = run_until(call, shared, false);
    if (ended == Ended::kNotTraceable) GTEST_SKIP();
    ASSERT_EQ(ended, Ended::kKilled);
  }
  expect_error([&] { run({.target = {.ranks = 3}}, true); }, ErrorCode::kMismatch,
               "ranks: 24 then, 3 now");
  remove_workers(at("pool"));
  EXPECT_EQ(run({.target = {.ranks = 3}}, false).kept_files, 0U);
  EXPECT_EQ(hidden(), 0U);
}

TEST_F(Resume, WithoutALeftoverItConvertsAndSaysSo) {
  const ConvertReport report = run({}, true);
  EXPECT_EQ(report.kept_files, 0U);
  EXPECT_THAT(messages_of(report.findings), Contains(HasSubstr("nothing to resume")));
  expect_error([&] { run({}, true); }, ErrorCode::kAlreadyExists, "");
}

TEST_F(Resume, WhatIsStoppedIsKeptForTheNext) {
  ConvertOptions options = kAsStored;
  std::stop_source stop;
  options.stop = stop.get_token();
  options.limits.io.threads = 1;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    if (done > total / 2) stop.request_stop();
  };
  expect_error([&] { run(options, true); }, ErrorCode::kCancelled, "resume goes on with it");
  EXPECT_GT(finished().size(), 0U);
  EXPECT_GT(run(kAsStored, true).kept_files, 0U);
}

TEST_F(Resume, DamageOfTheSourceIsFoundThoughTheFileMadeOfItIsKept) {
  ConvertOptions options{.target = {.ranks = 3}};  // no file holds a whole record
  for (std::uint64_t call = 5; finished().empty(); call += 5) {
    const Ended ended = run_until(call, options, false);
    if (ended == Ended::kNotTraceable) GTEST_SKIP();
    ASSERT_EQ(ended, Ended::kKilled);
  }
  for (const auto& entry : fs::directory_iterator(at("source"))) {
    if (entry.path().extension() != ".distcp") continue;
    const auto time = fs::last_write_time(entry.path());
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (std::uint64_t at = 1000; at < entry.file_size() - 1000; at += 500)
      file.seekp(at) << "\x55";
    file.close();
    fs::last_write_time(entry.path(), time);
  }
  expect_error([&] { run(options, true); }, ErrorCode::kCorrupt, "");
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(Resume, AFormatThatAlwaysStartsAnewRefusesIt) {
  SaveStrategyEntry entry = find_save_strategy("torch_dist");
  entry.name = "anew";
  entry.plain_dcp = "";
  entry.capabilities.resume = false;
  register_strategy(entry);
  expect_error([&] { run({.target = {.strategy = "anew"}}, true); }, ErrorCode::kUnsupported,
               "is written in one go by one process; leave out --resume");
}

}  // namespace
}  // namespace dckpt::resume_test
