// Stops a worker of a pool before its storage operations until its leases have expired, lets
// another worker do everything, and wakes the first one up: the result stays as it is, and the late
// worker ends well. An ordinary run takes a sample of the operations; DCKPT_SWEEP=all takes every
// one.

#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "mapping/base/log.h"
#include "operations/convert/workers/worker_pool.h"
#include "operations/convert/workers/worker_survey.h"
#include "strategies/storage/posix.h"
#include "tests/operations/convert/conversions.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/golden.h"
#include "tests/support/random.h"

namespace dckpt::late_worker_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::content;
using testing::golden;
using ::testing::HasSubstr;
using testing::refusal_of;

class LateWorker : public testing::Conversions {
 protected:
  LateWorker() {
    fs::copy(golden("mcore-0.14-flattened-tp2pp2dp2"), at("source"), fs::copy_options::recursive);
  }

  /// Converts with the pool and the destination in `storage`.
  void work(const std::shared_ptr<Storage>& storage, const ConvertOptions& options,
            std::chrono::milliseconds lease, const std::string& pool = "pool") const {
    ConvertOptions with_pool = options;
    with_pool.workers = {.directory = Location(storage, pool), .lease = lease};
    convert(at("source"), Location(storage, "out"), with_pool);
  }
  std::shared_ptr<Storage> files() const { return posix_storage(directory_.path()); }
};

class StoppedWorker : public LateWorker, public ::testing::WithParamInterface<bool> {};

TEST_P(StoppedWorker, LeavesTheResultOfTheOthersAndEndsWell) {
  set_log_sink([](LogLevel, std::string_view) {});
  const bool replaces = GetParam();
  const ConvertOptions options{
      .target = {.ranks = 2, .overwrite = replaces},
      .limits = {.io = {.threads = 1, .fsync = false}},
  };
  run("source", "alone", options);
  const auto alone = content(at("alone"));
  bool fired = true;
  testing::Sweep sweep(40);
  for (std::uint64_t stop = 1; fired && !HasFailure(); stop = sweep.after(stop)) {
    SCOPED_TRACE(sweep.trace(stop));
    for (const char* const name : {"out", "pool"}) fs::remove_all(at(name));
    if (replaces) run("source", "out", {.target = {.ranks = 5}});
    std::map<std::string, std::string> published;
    const auto others = [&](std::string_view) {
      work(files(), options, 200ms);
      published = content(at("out"));
    };
    const auto stopped =
        std::make_shared<FaultyStorage>(files(), Fault{Fault::Kind::kStop, stop, others});
    EXPECT_NO_THROW(work(stopped, options, 200ms));
    fired = stopped->fired();
    EXPECT_EQ(published, fired ? alone : decltype(alone)());
    EXPECT_EQ(content(at("out")), alone);
    EXPECT_TRUE(survey_workers(at("pool")).published);
    for (const auto& entry : fs::directory_iterator(directory_.path()))
      EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
    EXPECT_NO_THROW(work(files(), options, 200ms)) << "whoever comes later finds the result";
  }
  set_log_sink({});
}

INSTANTIATE_TEST_SUITE_P(Pools, StoppedWorker, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Replacing" : "New"; });

TEST_F(LateWorker, OfAnotherPoolIsRefusedByItsNameWhileThatOneWorks) {
  const ConvertOptions options{.target = {.ranks = 2}};
  run("source", "alone", options);
  std::pair<ErrorCode, std::string> refusal;
  const auto second = [&] {
    refusal = refusal_of([&] { work(files(), options, 2min, "second"); });
  };
  for (std::uint64_t stop = 60; refusal.second.empty(); stop += 5) {
    ASSERT_LT(stop, 300u) << "the first pool never had a claim";
    for (const char* const name : {"out", "pool", "second"}) fs::remove_all(at(name));
    const auto tried = [&](std::string_view) {
      if (worker_at_work(at("pool"))) second();
    };
    work(std::make_shared<FaultyStorage>(files(), Fault{Fault::Kind::kStop, stop, tried}), options,
         2min);
  }
  EXPECT_EQ(refusal.first, ErrorCode::kAborted);
  EXPECT_THAT(refusal.second, HasSubstr(at("pool").string()));
  EXPECT_EQ(content(at("out")), content(at("alone")));
}

TEST_F(LateWorker, AClaimThatItsOwnerNeverWroteCostsAQuarterOfALease) {
  fs::create_directories(at("pool"));
  PooledJob job{.facts = {}, .destination = at("out"), .staging = ".out.saving-workers-"};
  job.units.push_back({"unit", 1});
  WorkerPool pool(Location(at("pool")), job, 2min);
  for (const char* const text : {"", "half"}) {
    const fs::path claim = at("pool") / "0.claim-1";
    std::ofstream(claim, std::ios::trunc) << text;
    EXPECT_FALSE(pool.claim("unit")) << "its owner may be about to write";
    fs::last_write_time(claim, fs::file_time_type::clock::now() - 31s);
    EXPECT_TRUE(pool.claim("unit")) << text;
  }
}

}  // namespace
}  // namespace dckpt::late_worker_test
