#include "transfer/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "mapping/base/error.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "operations/json/reports.h"
#include "strategies/comm/threads.h"
#include "tests/support/arange.h"
#include "tests/support/expect_error.h"
#include "tests/support/random.h"
#include "tests/support/random_transfer.h"
#include "tests/support/watched_communicator.h"

namespace dckpt::transfer_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Random;
using testing::RandomTransfer;

constexpr std::int64_t kRows = 96, kColumns = 128;  // 48 KiB

/// Returns rows (or columns) of "w" for part `part` of `parts`.
ShardedTensor part_of_w(std::size_t axis, std::int64_t part, std::int64_t parts, bool filled,
                        std::int64_t replica = 0) {
  Box box{{0, 0}, {kRows, kColumns}};
  box.sizes[axis] /= parts;
  box.offsets[axis] = part * box.sizes[axis];
  return ShardedTensor::from_box(
      "w", filled ? part_of_arange({kRows, kColumns}, box) : untouched(box.sizes),
      {kRows, kColumns}, box.offsets, {.replica_id = replica});
}

bool is_right(const ShardedTensor& shard) {
  return equal(shard.data.value(), part_of_arange({kRows, kColumns}, shard.global_box()));
}

using Prepare = std::function<void(int rank, StateDict& from, StateDict& to)>;

/// Returns each rank's error of a transfer, empty where there is none.
std::vector<std::string> errors_of(int ranks, const Prepare& prepare) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](Communicator& comm) {
    StateDict from, to;
    prepare(comm.rank(), from, to);
    try {
      transfer(from, to, comm);
    } catch (const CheckpointError& error) {
      errors[static_cast<std::size_t>(comm.rank())] =
          std::string(to_string(error.code())) + ": " + error.what();
    }
    comm.barrier();  // nobody has left the others
  });
  return errors;
}

TEST(Transfer, TrainersFeedAnInferenceEngineInRoundsOfBoundedMemory) {
  // Two replicas of two halves of the rows, to three ranks that want columns, or all.
  constexpr std::uint64_t kStaging = 4096;
  std::atomic<std::uint64_t> sent = 0;
  run_ranks(7, [&](Communicator& comm) {
    const int rank = comm.rank();
    StateDict from, to;
    if (rank < 4) from["w"] = part_of_w(0, rank % 2, 2, true, rank / 2);
    if (rank == 4 || rank == 5) to["columns"] = part_of_w(1, rank - 4, 2, false);
    if (rank == 6) to["all"] = part_of_w(0, 0, 1, false);
    to["iteration"] = 7;
    const TransferReport report = transfer(from, to, comm, {.staging = kStaging});
    constexpr std::uint64_t kBytes = kRows * kColumns * 4;
    EXPECT_EQ(report.bytes_sent, rank < 4 ? kBytes / 2 : 0);
    EXPECT_EQ(report.bytes_received, rank < 4 ? 0 : rank < 6 ? kBytes / 2 : kBytes);
    EXPECT_EQ(report.bytes_copied, 0U);
    EXPECT_GE(report.rounds, kBytes / (kStaging / 2));
    sent += report.bytes_sent;
    for (const char* const name : {"columns", "all"}) {
      if (to.contains(name)) {
        EXPECT_TRUE(is_right(to.at(name).as_sharded_tensor())) << rank;
      }
    }
    EXPECT_EQ(to.at("iteration").as_int(), 7);
  });
  EXPECT_EQ(sent, 2 * kRows * kColumns * 4U);
}

TEST(Transfer, NoRankHoldsMoreInTransitThanTheSmallestStaging) {
  run_ranks(4, [&](Communicator& comm) {
    testing::WatchedCommunicator measured(comm, [](std::uint64_t) {});
    StateDict from, to;
    from["w"] = part_of_w(0, comm.rank(), 4, true);
    to["w"] = part_of_w(1, comm.rank(), 4, false);
    transfer(from, to, measured, {.staging = comm.rank() == 2 ? 3000U : 1U << 20});
    EXPECT_TRUE(is_right(to.at("w").as_sharded_tensor()));
    EXPECT_LE(measured.largest_exchange(), 1500U);
    EXPECT_GT(measured.largest_exchange(), 700U);
  });
}

TEST(Transfer, OfRandomLayoutsIsExact) {
  Random random;
  for (int round = 0; round < testing::random_cases(300) && !HasFailure(); ++round) {
    SCOPED_TRACE(random.trace(round));
    RandomTransfer random_transfer = testing::random_transfer(random, testing::in_cpu_memory);
    const std::uint64_t staging =
        random.chance(50) ? 1U << 20 : static_cast<std::uint64_t>(random.between(1, 200));
    run_ranks(static_cast<int>(random_transfer.ranks.size()), [&](Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      RandomTransfer::Rank& mine = random_transfer.ranks[rank];
      transfer(mine.from, mine.to, comm, {.staging = staging});
      EXPECT_EQ(random_transfer.wrong_elements(rank), 0) << "rank " << rank;
    });
  }
}

TEST(Transfer, ThatIsRepeatedPlansNothingUntilARankChanges) {
  std::vector<TransferCache> caches(3);
  const auto run = [&](std::int64_t parts_of_rank_2, std::uint64_t staging = 1U << 20) {
    std::array<TransferReport, 3> reports;
    run_ranks(3, [&](Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      StateDict from, to;
      if (rank < 2) from["w"] = part_of_w(0, comm.rank(), 2, true);
      if (rank == 2) to["w"] = part_of_w(1, 0, parts_of_rank_2, false);
      reports[rank] = transfer(from, to, comm, caches[rank], {.staging = staging});
      if (rank == 2) {
        EXPECT_TRUE(is_right(to.at("w").as_sharded_tensor()));
      }
    });
    EXPECT_EQ(reports[0].plan_cached, reports[2].plan_cached);
    return reports;
  };
  EXPECT_EQ(run(1)[0].why_planned, "first transfer");
  EXPECT_TRUE(run(1)[0].plan_cached);
  const auto changed = run(2);
  EXPECT_FALSE(changed[1].plan_cached);
  EXPECT_EQ(changed[1].why_planned, "");
  EXPECT_EQ(changed[2].why_planned, "other tensors or staging");
  EXPECT_TRUE(run(2)[0].plan_cached);
  EXPECT_FALSE(run(2, 1U << 19)[0].plan_cached);
  caches[1] = TransferCache();  // this rank was started again
  const auto restarted = run(2, 1U << 19);
  EXPECT_FALSE(restarted[0].plan_cached);
  EXPECT_EQ(restarted[1].why_planned, "first transfer");
  EXPECT_THAT(to_string(restarted[0]), HasSubstr("not cached: another rank's tensors"));
  EXPECT_THAT(to_string(run(2, 1U << 19)[0]), HasSubstr("cached; 1 round;"));
}

TEST(Transfer, WithinARankCopiesAndTheSameMemoryStays) {
  run_ranks(2, [&](Communicator& comm) {
    StateDict state;
    state["w"] = part_of_w(0, comm.rank(), 2, true);
    const TransferReport in_place = transfer(state, state, comm);
    EXPECT_EQ(in_place.bytes_sent + in_place.rounds, 0U);
    EXPECT_TRUE(is_right(state.at("w").as_sharded_tensor()));
    StateDict to;
    to["w"] = part_of_w(0, comm.rank(), 2, false);
    EXPECT_EQ(transfer(state, to, comm).bytes_copied, kRows * kColumns * 4U / 2);
    EXPECT_TRUE(is_right(to.at("w").as_sharded_tensor()));
  });
}

TEST(Transfer, FillsWhatAFactoryBuilds) {
  run_ranks(2, [&](Communicator& comm) {
    StateDict from, to;
    if (comm.rank() == 0) {
      from["w"] = part_of_w(0, 0, 1, true);
    } else {
      ShardedTensorFactory factory;
      factory.key = "w";
      factory.data = untouched({kRows, kColumns});
      factory.build = [](const std::string& key, const Tensor& data, const ReplicaId&,
                         const std::optional<FlattenedRange>&) {
        Value built = Value::dict();
        for (const std::int64_t half : {0, 1})
          built[half == 0 ? "gate" : "up"] =
              ShardedTensor::from_box(key, data.narrow(0, half * kRows / 2, kRows / 2),
                                      {kRows, kColumns}, {half * kRows / 2, 0});
        return built;
      };
      factory.merge = [data = factory.data](const Value&) { return Value(data); };
      to["w"] = factory;
    }
    transfer(from, to, comm);
    if (comm.rank() == 1) {
      EXPECT_TRUE(equal(to.at("w").as_factory().data, arange({kRows, kColumns})));
    }
  });
}

TEST(Transfer, OfNothingAndToNobodyEnds) {
  EXPECT_THAT(errors_of(3, [](int, StateDict&, StateDict&) {}), Each(""));
  EXPECT_THAT(errors_of(2, [](int rank, StateDict& from,
                              StateDict&) { from["w"] = part_of_w(0, rank, 2, true); }),
              Each(""));
}

TEST(Transfer, WhatDoesNotFitIsTheSameErrorOnAllRanks) {
  const auto expect_all = [](const Prepare& prepare, const auto& matcher) {
    const std::vector<std::string> errors = errors_of(3, prepare);
    EXPECT_THAT(errors, Each(matcher));
  };
  expect_all(
      [](int rank, StateDict& from, StateDict& to) {
        if (rank < 2) from["w"] = part_of_w(0, 0, 2, true, rank);
        if (rank == 2) to["w"] = part_of_w(0, 0, 1, false);
      },
      AllOf(HasSubstr("mismatch"), HasSubstr("'w': rank 2 wants [0:96, 0:128], of which no rank "
                                             "holds 6,144 elements as main replica")));
  expect_all(
      [](int rank, StateDict& from, StateDict& to) {
        if (rank < 2) from["w"] = part_of_w(0, 0, 1, true, 0);
        if (rank == 2) to["w"] = part_of_w(0, 0, 1, false);
      },
      HasSubstr("'w': ranks 0, 1 hold [0:96, 0:128] as main replica 2 times"));
  expect_all(
      [](int rank, StateDict& from, StateDict& to) {
        if (rank == 0) from["w"] = part_of_w(0, 0, 1, true);
        if (rank == 1)
          to["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kBFloat16, {kRows, kColumns}));
      },
      HasSubstr("'w': rank 1 wants bfloat16 (96, 128), but rank 0 holds float32 (96, 128)"));
  expect_all(
      [](int rank, StateDict& from, StateDict&) {
        if (rank != 1) return;
        from["w"] = part_of_w(0, 0, 1, true);
        ShardedTensor missing = part_of_w(0, 0, 1, true);
        missing.data.reset();
        missing.key = "v";
        from["v"] = missing;
      },
      AllOf(HasSubstr("invalid-argument"), HasSubstr("rank 1"),
            HasSubstr("'v' of `from` has no data")));
  expect_all(
      [](int rank, StateDict&, StateDict& to) {
        if (rank == 2) to["rng"] = ShardedObject{.key = "rng", .data = Value(1)};
      },
      AllOf(HasSubstr("unsupported"), HasSubstr("rng")));
  expect_all(
      [](int rank, StateDict& from, StateDict& to) {
        if (rank != 0) return;
        const ShardedTensor all = part_of_w(0, 0, 1, true);
        from["w"] = all;
        to["w"] =
            ShardedTensor::from_box("w", all.data->narrow(0, 0, 8), {kRows, kColumns}, {8, 0});
      },
      HasSubstr("'w' of `from` and 'w' of `to` overlap in memory"));
}

TEST(Transfer, ThatARankFailsInEndsOnAllRanks) {
  // Rank 1 fails before or after each of its communications.
  testing::Sweep sweep;
  for (std::uint64_t fatal = 1;; fatal = sweep.after(fatal)) {
    std::array<std::string, 3> errors;
    std::atomic<bool> reached = false;
    const std::string first = [&]() -> std::string {
      try {
        run_ranks(
            3,
            [&](Communicator& threads) {
              testing::WatchedCommunicator comm(threads, [&](std::uint64_t moment) {
                if (threads.rank() != 1 || moment != fatal) return;
                reached = true;
                throw CheckpointError(ErrorCode::kIo, "the test fails rank 1");
              });
              StateDict from, to;
              from["w"] = part_of_w(0, threads.rank(), 3, true);
              to["w"] = part_of_w(1, 0, 1, false);
              transfer(from, to, comm, {.staging = 40000});
            },
            std::chrono::seconds(30));
      } catch (const CheckpointError& error) {
        return error.what();
      }
      return "";
    }();
    if (!reached) {
      EXPECT_GT(fatal, 10U);
      return;
    }
    EXPECT_NE(first, "") << fatal;
  }
}

TEST(Transfer, PlansWithoutDataForOtherTransports) {
  run_ranks(3, [&](Communicator& comm) {
    StateDict from, to;
    if (comm.rank() < 2) from["w"] = part_of_w(0, comm.rank(), 2, true).without_data();
    if (comm.rank() > 0) to["w"] = part_of_w(1, comm.rank() - 1, 2, true).without_data();
    const TransferPlan plan = plan_transfer(from, to, comm);
    EXPECT_EQ(plan.ranks, comm.rank() == 0 ? 3U : 0U);
    const std::vector<TransferLayout> held{transfer_layout(from)};
    if (comm.rank() != 0) return;
    const std::string json = to_json(plan);
    EXPECT_THAT(json, HasSubstr("\"key\": \"w\""));
    EXPECT_EQ(held.front().front().key, "w");
    EXPECT_EQ(plan.moves.size(), 4U);
  });
}

}  // namespace
}  // namespace dckpt::transfer_test
