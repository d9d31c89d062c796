// Conversions that several workers share: they come late, die, are stopped, fail.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "dist_checkpointing/verify/integrity.h"
#include "operations/convert/workers/worker_pool.h"
#include "operations/convert/workers/worker_survey.h"
#include "strategies/comm/threads.h"
#include "strategies/storage/posix.h"
#include "tests/operations/convert/conversions.h"
#include "tests/support/child_process.h"
#include "tests/support/expect_error.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/golden.h"
#include "tests/support/random.h"

namespace dckpt::worker_pool_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
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
using testing::refusal_of;

class Pool : public testing::Conversions {
 protected:
  Pool() {
    fs::copy(golden("mcore-0.14-flattened-tp2pp2dp2"), at("source"), fs::copy_options::recursive);
  }

  ConvertReport work(ConvertOptions options, std::chrono::milliseconds lease = 2min) const {
    options.workers = {.directory = Location(at("pool")), .lease = lease};
    return run("source", "out", options);
  }

  /// Returns the files that one process writes.
  std::map<std::string, std::string> expected(const ConvertOptions& options) const {
    run("source", "alone", options);
    return content(at("alone"));
  }

  /// Expects the result of one process, and nothing else beside it.
  void expect_result(const std::map<std::string, std::string>& expected) const {
    ASSERT_TRUE(fs::exists(at("out")));
    EXPECT_EQ(content(at("out")), expected);
    for (const auto& entry : fs::directory_iterator(directory_.path()))
      EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
    EXPECT_TRUE(survey_workers(at("pool")).published);
  }

  /// Removes everything but the source and what one process wrote.
  void start_again() const {
    for (const auto& entry : fs::directory_iterator(directory_.path()))
      if (entry.path() != at("source") && entry.path() != at("alone")) fs::remove_all(entry.path());
  }
};

struct Format {
  const char* name;
  ConvertOptions options;
  bool replaces = false;  ///< another checkpoint
};
void PrintTo(const Format& format, std::ostream* out) {
  *out << format.name;
}

class PoolFor : public Pool, public ::testing::WithParamInterface<Format> {
 protected:
  void make_other() const {
    if (GetParam().replaces) run("source", "out", {.target = {.ranks = 5}});
  }
};

TEST_P(PoolFor, SeveralWorkersWriteWhatOneProcessWrites) {
  const auto alone = expected(GetParam().options);
  make_other();
  std::vector<ConvertReport> reports(3);
  {
    std::vector<std::jthread> workers;
    for (ConvertReport& report : reports)
      workers.emplace_back([&] { report = work(GetParam().options); });
  }
  expect_result(alone);
  std::uint64_t units = 0;
  int publishers = 0;
  for (const ConvertReport& report : reports) {
    units += report.workers->units_here;
    publishers += report.workers->published_here ? 1 : 0;
    EXPECT_EQ(report.workers->units, reports[0].workers->units);
  }
  EXPECT_EQ(units, reports[0].workers->units);
  EXPECT_EQ(publishers, 1);
  const ConvertReport late = work(GetParam().options);
  EXPECT_EQ(late.workers->units_here, 0U);
  EXPECT_FALSE(late.workers->published_here);
  expect_result(alone);
}

/// A process that works in a pool.
class WorkerProcess {
 public:
  explicit WorkerProcess(const std::function<void()>& work) : id_(::fork()) {
    if (id_ != 0) return;
    try {
      work();
      ::_exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "worker: %s\n", error.what());
      ::_exit(1);
    }
  }
  void signal(int number) const { ::kill(id_, number); }
  int wait() const {
    int status = 0;
    ::waitpid(id_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t id_;
};

// Leases are so short that a stopped process loses its units, and goes on afterwards.
TEST_P(PoolFor, WorkersThatAreKilledStoppedAndLateArriveTogether) {
  ConvertOptions options = GetParam().options;
  options.limits = {.io = {.threads = 1, .fsync = false}};
  if (options.target.ranks) options.target.ranks = 24;
  const auto alone = expected(options);
  testing::Random random;
  const int rounds = testing::sweeps_all() ? 200 : 2;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(random.trace(round));
    make_other();
    std::vector<WorkerProcess> workers;
    for (int i = 0; i < 3; ++i) {
      workers.emplace_back([&] { work(options, 200ms); });
      std::this_thread::sleep_for(std::chrono::milliseconds(random.between(0, 30)));
      if (random.chance(40)) workers[random.between(0, i)].signal(SIGKILL);
      if (random.chance(40)) {
        const WorkerProcess& stopped = workers[random.between(0, i)];
        stopped.signal(SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(random.chance(30) ? 300 : 20));
        stopped.signal(SIGCONT);
      }
    }
    work(options, 200ms);
    for (const WorkerProcess& worker : workers) EXPECT_NE(worker.wait(), 1);
    ASSERT_NO_FATAL_FAILURE(expect_result(alone));
    start_again();
  }
}

// The first of three workers has a storage that fails, or a process that dies, at any operation,
// while the others work or before they come.
TEST_P(PoolFor, AFaultOfOneWorkerIsNoFaultOfTheOthers) {
  const ConvertOptions& options = GetParam().options;
  const auto alone = expected(options);
  testing::Random random;
  SCOPED_TRACE(random.trace(0));
  const auto work_well = [&] {
    try {
      work(options, 300ms);
    } catch (const CheckpointError& error) {
      ADD_FAILURE() << error.what();
    }
  };
  // Returns whether there was a fault.
  const auto fails_at = [&](const Fault& fault, bool together) {
    make_other();
    const auto faulty = std::make_shared<FaultyStorage>(posix_storage(directory_.path()), fault);
    ConvertOptions through = options;
    through.workers = {.directory = Location(faulty, "pool"), .lease = 300ms};
    std::vector<std::jthread> others;
    if (together) {
      for (int i = 0; i < 2; ++i) others.emplace_back(work_well);
    }
    try {
      convert(at("source"), Location(faulty, "out"), through);
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("injected"));
    }
    while (others.size() < 2) others.emplace_back(work_well);
    others.clear();
    if (GetParam().replaces)  // whose old checkpoint stays hidden as long as this process lives
      EXPECT_EQ(content(at("out")), alone);
    else
      expect_result(alone);
    start_again();
    return faulty->fired();
  };
  for (const Fault::Kind kind :
       {Fault::Kind::kError, Fault::Kind::kErrorAfterEffect, Fault::Kind::kCrash}) {
    std::uint64_t number = 1;
    for (bool fired = true; fired && !HasFatalFailure();) {
      SCOPED_TRACE("kind " + std::to_string(static_cast<int>(kind)) + " at " +
                   std::to_string(number));
      const bool both = testing::sweeps_all();
      const bool together = random.chance(50);
      if (both || together) fired = fails_at({kind, number}, true);
      if (both || !together) fired = fails_at({kind, number}, false);
      number += both ? 1 : static_cast<std::uint64_t>(random.between(50, 250));
    }
  }
}

const ConvertOptions kReplacing{.target = {.ranks = 3, .overwrite = true}};

INSTANTIATE_TEST_SUITE_P(Formats, PoolFor,
                         ::testing::Values(Format{"ForThree", kForThree}, Format{"AsStored", {}},
                                           Format{"Hf", kHf}, Format{"Ranks", kRanks},
                                           Format{"Zarr", kZarr}, Format{"Zstd", kZstd},
                                           Format{"Replacing", kReplacing, true}),
                         [](const auto& format) { return format.param.name; });

TEST_F(Pool, RanksOfAJobShareAConversion) {
  const ConvertOptions options{.target = {.ranks = 24, .integrity = true}};
  const auto alone = expected(options);
  run_ranks(4, [&](Communicator& comm) {
    const ConvertReport report = convert(at("source"), at("out"), options, comm);
    EXPECT_EQ(report.files, 24U);
    EXPECT_FALSE(report.workers);
  });
  EXPECT_EQ(content(at("out")), alone);
  const auto before = content(directory_.path());
  run_ranks(3, [&](Communicator& comm) {
    const auto [code, message] =
        refusal_of([&] { convert(at("source"), at("out"), options, comm); });
    EXPECT_EQ(code, ErrorCode::kAlreadyExists) << message;
  });
  EXPECT_EQ(content(directory_.path()), before);
}

// Rank 1 cannot write.
TEST_F(Pool, TheWorkOfARankThatFailsIsDoneByOthers) {
  const ConvertOptions options{.target = {.ranks = 24}, .workers = {.lease = 500ms}};
  const auto alone = expected({.target = {.ranks = 24}});
  run_ranks(3, [&](Communicator& comm) {
    const auto storage = std::make_shared<FaultyStorage>(
        posix_storage(directory_.path()),
        Fault{Fault::Kind::kCrash, comm.rank() == 1 ? std::uint64_t{40} : 0});
    if (comm.rank() != 1)
      convert(at("source"), Location(storage, "out"), options, comm);
    else
      EXPECT_THAT(refusal_of([&] {
                    convert(at("source"), Location(storage, "out"), options, comm);
                  }).second,
                  HasSubstr("injected"));
  });
  EXPECT_EQ(content(at("out")), alone);
}

TEST_F(Pool, WaitingForOthersTakesNoRequestPerUnit) {
  PooledJob job{.facts = {}, .destination = at("out"), .staging = ".out.saving-workers-1"};
  for (int i = 0; i < 100; ++i) job.units.push_back({"unit" + std::to_string(i), 1});
  WorkerPool busy(Location(at("pool")), job, 2min);
  std::map<std::string, WorkerPool::Claim> claims;
  for (const WorkUnit& unit : job.units) claims.emplace(unit.name, *busy.claim(unit.name));

  const auto counting = std::make_shared<FaultyStorage>(posix_storage(directory_.path()));
  WorkerPool waiting(Location(counting, "pool"), job, 2min);
  std::uint64_t requests = 0;
  for (int look = 0; look < 2; ++look) {  // the first reads whose claims they are
    const std::uint64_t before = counting->operations();
    waiting.look();
    for (const WorkUnit& unit : job.units) EXPECT_TRUE(waiting.was_busy(unit.name));
    requests = counting->operations() - before;
  }
  EXPECT_LE(requests, 5U);

  claims.erase("unit1");
  busy.finish("unit2", {});
  waiting.look();
  for (const WorkUnit& unit : job.units)
    EXPECT_EQ(waiting.was_busy(unit.name), unit.name != "unit1" && unit.name != "unit2");
}

TEST_F(Pool, OfAnotherJobIsRefusedWithWhatDiffers) {
  work({.target = {.ranks = 3}});
  const auto before = content(directory_.path());
  const auto [code, message] = refusal_of([&] { work({.target = {.ranks = 4}}); });
  EXPECT_EQ(code, ErrorCode::kMismatch);
  EXPECT_THAT(message, HasSubstr("ranks: 3 then, 4 now"));
  EXPECT_EQ(content(directory_.path()), before);
  EXPECT_EQ(refusal_of([&] { work({.target = {.ranks = 3}, .dry_run = true}); }).first,
            ErrorCode::kInvalidArgument);
  fs::create_directories(at("foreign"));
  std::ofstream(at("foreign/notes.txt")) << "mine";
  EXPECT_EQ(refusal_of([&] {
              run("source", "out2", {.workers = {.directory = Location(at("foreign"))}});
            }).first,
            ErrorCode::kInvalidArgument);
}

TEST_F(Pool, InsideTheSourceOrTheDestinationIsRefused) {
  for (const char* const inside : {"source", "source/pool", "out", "out/pool"}) {
    const auto [code, message] =
        refusal_of([&] { run("source", "out", {.workers = {.directory = Location(at(inside))}}); });
    EXPECT_EQ(code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(message, HasSubstr("choose one outside"));
  }
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(Pool, RemovedWithItsUnpublishedFiles) {
  const ConvertOptions options{.target = {.ranks = 24}, .limits = {.io = {.threads = 1}}};
  WorkerSurvey left;
  for (std::uint64_t call = 60; left.workers.empty() || left.workers[0].units.empty(); ++call) {
    ASSERT_LT(call, 80U) << "no kill falls into the work on a unit";
    start_again();
    const Ended ended = killed_at(call, [&](const std::function<void()>& start) {
      start();
      work(options);
    });
    if (ended == Ended::kNotTraceable) GTEST_SKIP();
    left = survey_workers(at("pool"));
    ASSERT_EQ(left.workers.size(), 1U);
  }
  EXPECT_FALSE(left.published);
  EXPECT_LT(left.units_done, left.units);
  EXPECT_EQ(left.workers[0].state, SurveyedWorker::State::kSilent);
  remove_workers(at("pool"));
  EXPECT_FALSE(fs::exists(at("pool")));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), {}), 1) << "the source";
}

TEST_F(Pool, OfAnEarlierBuildIsRefusedByName) {
  fs::create_directory(at("pool"));
  std::ofstream(at("pool") / "job.json") << "{}";
  const std::string says = "an earlier build of dckpt has made this pool";
  for (const auto& [code, message] : {refusal_of([&] { work({.target = {.strategy = "dcp"}}); }),
                                      refusal_of([&] { survey_workers(at("pool").string()); }),
                                      refusal_of([&] { remove_workers(at("pool").string()); })}) {
    EXPECT_EQ(code, ErrorCode::kUnsupported);
    EXPECT_THAT(message, HasSubstr(says));
  }
  EXPECT_TRUE(fs::exists(at("pool") / "job.json"));
}

TEST_F(Pool, DamagedOnesCanBeRemovedToo) {
  for (const bool notes : {false, true}) {
    work({.target = {.ranks = 3}});
    if (notes)
      std::ofstream(at("pool") / notes_name("damaged", 1)) << as_text(note_record(to_bytes("x")));
    else
      std::ofstream(at("pool/job")) << "{";
    EXPECT_EQ(refusal_of([&] { (void)survey_workers(at("pool")); }).first, ErrorCode::kCorrupt);
    remove_workers(at("pool"));
    EXPECT_FALSE(fs::exists(at("pool")));
    EXPECT_TRUE(fs::exists(at("out/.metadata")));
    start_again();
  }
}

TEST_F(Pool, FilesThatAreNotAsTheirWorkerLeftThemAreWrittenAnew) {
  const ConvertOptions options{.target = {.ranks = 24}, .limits = {.io = {.threads = 1}}};
  const auto alone = expected(options);
  for (std::uint64_t call = 100;; call += 10) {
    ASSERT_LT(call, 400U) << "no kill leaves a finished unit";
    const Ended ended = killed_at(call, [&](const std::function<void()>& start) {
      start();
      work(options);
    });
    if (ended == Ended::kNotTraceable) GTEST_SKIP();
    if (survey_workers(at("pool")).units_done > 0) break;
    start_again();
  }
  std::this_thread::sleep_for(50ms);  // the clock of files is coarse
  for (const auto& entry : fs::recursive_directory_iterator(directory_.path()))
    if (entry.path().string().find(".out.saving") != std::string::npos && entry.is_regular_file())
      std::fstream(entry.path(), std::ios::in | std::ios::out | std::ios::binary) << "damage";
  EXPECT_EQ(work(options).workers->units_here, 24U);
  expect_result(alone);
}

TEST_F(Pool, AResultThatIsGoneOrChangedIsNoSuccess) {
  work({.target = {.ranks = 3}});
  fs::remove(at("out/__1_0.distcp"));
  EXPECT_THAT(refusal_of([&] { work({.target = {.ranks = 3}}); }).second,
              HasSubstr("files of it are gone or have changed"));
  fs::remove_all(at("out"));
  EXPECT_THAT(refusal_of([&] { work({.target = {.ranks = 3}}); }).second, HasSubstr("it is gone"));
}

TEST_F(Pool, AJobThatCannotBeDoneDoesNotBegin) {
  fs::create_directories(at("out"));
  std::ofstream(at("out/.metadata")) << "other";
  EXPECT_EQ(refusal_of([&] { work({}); }).first, ErrorCode::kAlreadyExists);
  EXPECT_FALSE(fs::exists(at("pool/job")));
}

TEST_F(Pool, ComparesTheSourceWithItsManifestAndEndsWithTheDamage) {
  run("source", "listed", {.target = {.integrity = true}});
  fs::remove_all(at("source"));
  fs::rename(at("listed"), at("source"));
  const auto alone = expected({.target = {.ranks = 3}});
  const ConvertReport report = work({.target = {.ranks = 3}});
  EXPECT_GT(report.workers->units, 3U);
  expect_result(alone);
  start_again();
  std::fstream file(at("source/__0_0.distcp"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(3000);
  file.put('\x55');
  file.close();
  for (int worker = 0; worker < 2; ++worker)
    EXPECT_EQ(refusal_of([&] { work({.target = {.ranks = 3}}); }).first, ErrorCode::kCorrupt);
  EXPECT_FALSE(fs::exists(at("out")));
}

}  // namespace
}  // namespace dckpt::worker_pool_test
