#include "dist_checkpointing/ranks/shared_work.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <mutex>
#include <numeric>
#include <set>

#include "dist_checkpointing/open/open.h"
#include "mapping/base/error.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/digest.h"
#include "operations/inspect/stats.h"
#include "operations/inspect/verify.h"
#include "operations/json/reports.h"
#include "strategies/comm/threads.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::shared_work_test {
namespace {

using ::testing::Each;
using testing::golden;
using ::testing::HasSubstr;

struct Number {
  std::uint64_t value = 0;
};
constexpr auto fields(const Number*) {
  return std::tuple(Field(&Number::value));
}

/// Returns what each rank makes of `job`, or its error.
std::vector<std::string> on_ranks(int size, const std::function<std::string(Communicator&)>& job) {
  std::vector<std::string> results(static_cast<std::size_t>(size));
  run_ranks(size, [&](Communicator& comm) {
    try {
      results[static_cast<std::size_t>(comm.rank())] = job(comm);
    } catch (const CheckpointError& error) {
      results[static_cast<std::size_t>(comm.rank())] =
          std::string(to_string(error.code())) + ": " + error.what();
    }
  });
  return results;
}

TEST(SharedWork, EachUnitIsDoneOnceAndBytesAreBalanced) {
  std::vector<std::uint64_t> sizes(200);
  std::iota(sizes.begin(), sizes.end(), 1);
  std::mutex mutex;
  std::vector<std::uint64_t> bytes(3);
  std::multiset<std::size_t> done;
  run_ranks(3, [&](Communicator& comm) {
    SharedWork work(comm, "counting", 2);
    const auto found = work.share<Number>(sizes, [&](std::size_t unit) {
      const std::lock_guard lock(mutex);
      bytes[static_cast<std::size_t>(comm.rank())] += sizes[unit];
      done.insert(unit);
      return Number{unit * unit};
    });
    for (std::size_t unit = 0; unit < sizes.size(); ++unit)
      EXPECT_EQ(found[unit].value, unit * unit);
  });
  EXPECT_EQ(done.size(), 200);
  EXPECT_EQ(std::set(done.begin(), done.end()).size(), 200);
  EXPECT_LE(*std::ranges::max_element(bytes) - *std::ranges::min_element(bytes), 200);
}

TEST(SharedWork, ErrorsReachAllRanksAndNameTheRank) {
  const std::vector<std::uint64_t> sizes(9, 1);
  EXPECT_THAT(on_ranks(3,
                       [&](Communicator& comm) {
                         SharedWork work(comm, "counting", 1);
                         work.share<Number>(sizes, [&](std::size_t) {
                           if (comm.rank() == 2)
                             throw CheckpointError(ErrorCode::kCorrupt, "no such number");
                           return Number{};
                         });
                         return std::string();
                       }),
              Each(HasSubstr("corrupt: counting failed on rank 2 of 3; rank 2: no such number")));
  const auto step_fails_on = [](int failing) {
    return on_ranks(3, [failing](Communicator& comm) {
      SharedWork(comm, "counting", 1).on_all_ranks([&] {
        if (comm.rank() >= failing) throw CheckpointError(ErrorCode::kIo, "no ink");
      });
      return std::string();
    });
  };
  EXPECT_THAT(step_fails_on(0), Each("io: no ink"));
  EXPECT_THAT(step_fails_on(1), Each(HasSubstr("io: counting failed on ranks 1, 2 of 3; rank 1")));
}

TEST(SharedWork, RanksThatSeeOtherPartsAreRefused) {
  EXPECT_THAT(
      on_ranks(
          2,
          [&](Communicator& comm) {
            SharedWork work(comm, "counting", 1);
            const std::vector<std::uint64_t> sizes = {1, static_cast<std::uint64_t>(comm.rank())};
            work.share<Number>(sizes, [](std::size_t) { return Number{}; });
            return std::string();
          }),
      Each(HasSubstr("the ranks were given different parts of the checkpoint: '0 bytes' on "
                     "rank 0; '1 bytes' on rank 1")));
}

/// Expects that any number of ranks gets the report of one.
void expect_same(const std::function<std::string(Communicator&)>& report) {
  const std::string of_one = report(*single_rank());
  for (const int size : {2, 5}) EXPECT_THAT(on_ranks(size, report), Each(of_one));
}

TEST(SharedWork, ReportsOfSeveralRanksAreThoseOfOne) {
  const std::string other = golden("mcore-0.14-flattened-tp2pp2dp2").string();
  for (const char* const name : {"mcore-head-synthetic", "legacy-torch-tp2pp2", "dcp-plain-nested",
                                 "mcore-0.14-zarr-tp2pp1dp2"}) {
    SCOPED_TRACE(name);
    const std::string path = golden(name).string();
    expect_same(
        [&](Communicator& comm) { return to_json(digest(*open_checkpoint(path), {}, comm)); });
    expect_same([&](Communicator& comm) {
      return to_json(stats(*open_checkpoint(path), {.memory = 4096}, comm));
    });
    expect_same([&](Communicator& comm) {
      return to_json(verify(*open_checkpoint(path), {.deep = true, .nan = true}, comm));
    });
    expect_same([&](Communicator& comm) {
      return to_json(diff(*open_checkpoint(path), *open_checkpoint(other), {}, comm));
    });
  }
}

TEST(SharedWork, DamageIsReportedAsByOneRank) {
  const TempDir folder;
  const auto path = folder / "ckpt";
  std::filesystem::copy(golden("mcore-head-synthetic"), path,
                        std::filesystem::copy_options::recursive);
  std::filesystem::resize_file(path / "__1_0.distcp", 3000);
  expect_same([&](Communicator& comm) {
    const VerifyReport report = verify(*open_checkpoint(path), {.deep = true}, comm);
    EXPECT_GT(report.problems.size(), 1);
    return to_json(report);
  });
}

}  // namespace
}  // namespace dckpt::shared_work_test
