// Ranks as threads load together: one rank reads from storage what several of them want.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <numeric>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/error.h"
#include "strategies/comm/threads.h"
#include "tests/support/arange.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"

namespace dckpt::parallel_load_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Values;

Tensor range_of_arange(std::int64_t begin, std::int64_t end) {
  Tensor part = Tensor::empty(DType::kFloat32, {end - begin});
  std::iota(reinterpret_cast<float*>(part.data()),
            reinterpret_cast<float*>(part.data()) + part.numel(), static_cast<float>(begin));
  return part;
}

/// A shard that a rank wants, and its expected values.
struct Wish {
  ShardedTensor shard;
  Tensor expected;
};

Wish wish_box(const std::string& key, const Shape& shape, const Box& box) {
  return {ShardedTensor::from_box(key, untouched(box.sizes), shape, box.offsets),
          part_of_arange(shape, box)};
}

Wish wish_range(const std::string& key, const Shape& shape, std::int64_t begin, std::int64_t end) {
  return {ShardedTensor::from_flat_range(key, untouched({end - begin}), shape, shape,
                                         Shape(shape.size(), 0), {begin, end}),
          range_of_arange(begin, end)};
}

/// The bytes read and the results of each rank of a load.
struct Outcome {
  std::uint64_t bytes_read = 0;
  std::vector<std::string> errors;  ///< by rank, empty where there was none
};

class ParallelLoad : public ::testing::TestWithParam<Exchange> {
 protected:
  static constexpr Shape::value_type kRows = 192, kColumns = 4096;  // 3 MiB
  const Shape shape{kRows, kColumns};

  std::filesystem::path checkpoint() const { return directory_.path() / "checkpoint"; }

  LoadOptions options() const {
    return {.parallel = {.enabled = true, .exchange = GetParam()},
            .validate_access_integrity = false,
            .staging = std::uint64_t{2} << 20};
  }

  /// Saves on four ranks rows of "rows", columns of "columns", and fragments of "flat" in
  /// Megatron's form; all of them hold "replicated".
  void save_all() {
    run_ranks(4, [&](Communicator& comm) {
      const std::int64_t rank = comm.rank();
      StateDict state;
      state["rows"] = ShardedTensor::from_rank_offsets(
          "rows", part_of_arange(shape, {{rank * kRows / 4, 0}, {kRows / 4, kColumns}}),
          {{.axis = 0, .rank = rank, .count = 4}});
      state["columns"] = ShardedTensor::from_rank_offsets(
          "columns", part_of_arange(shape, {{0, rank * kColumns / 4}, {kRows, kColumns / 4}}),
          {{.axis = 1, .rank = rank, .count = 4}});
      state["replicated"] = ShardedTensor::whole("replicated", arange(shape), {.replica_id = rank});
      const std::int64_t begin = rank == 0 ? 0 : rank * kRows * kColumns / 4 + 333;
      const std::int64_t end =
          rank == 3 ? kRows * kColumns : (rank + 1) * kRows * kColumns / 4 + 333;
      state["flat"] =
          ShardedTensor::from_flat_range("flat", range_of_arange(begin, end), shape, shape, {0, 0},
                                         {begin, end}, {.replica_id = 0});
      state["object"] =
          ShardedObject{.key = "object", .data = Value(std::string(5000, 'o')), .replica_id = rank};
      state["of rank"] = ShardedObject{
          .key = "of_rank", .data = Value(rank), .global_shape = {4}, .global_offset = {rank}};
      save(state, checkpoint(), {.flattened = FlattenedForm::kMegatron, .io = {.fsync = false}},
           comm);
    });
  }

  /// Loads the wishes of each rank and compares the results.
  Outcome load_wishes(int ranks,
                      const std::function<std::vector<Wish>(std::int64_t rank)>& wishes_of) {
    std::atomic<std::uint64_t> bytes_read = 0;
    std::vector<std::string> errors(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](Communicator& comm) {
      const std::vector<Wish> wishes = wishes_of(comm.rank());
      StateDict state;
      for (std::size_t i = 0; i < wishes.size(); ++i) state[std::to_string(i)] = wishes[i].shard;
      try {
        bytes_read += load(state, checkpoint(), options(), comm).bytes_read;
      } catch (const CheckpointError& error) {
        errors[static_cast<std::size_t>(comm.rank())] = error.what();
        return;
      }
      for (std::size_t i = 0; i < wishes.size(); ++i)
        EXPECT_TRUE(equal(*wishes[i].shard.data, wishes[i].expected))
            << "rank " << comm.rank() << ", " << to_string(wishes[i].shard);
    });
    return {bytes_read, errors};
  }

  void expect_read_once(std::uint64_t read, std::uint64_t stored) const {
    EXPECT_GE(read, stored);
    EXPECT_LE(read, stored * 105 / 100);
  }

  std::uint64_t tensor_bytes() const { return static_cast<std::uint64_t>(kRows * kColumns) * 4; }

  TempDir directory_;
};

TEST_P(ParallelLoad, ReplicasOfAllTensorsAreReadOnce) {
  save_all();
  for (const int ranks : {1, 2, 4, 8}) {
    const Outcome outcome = load_wishes(ranks, [&](std::int64_t) {
      std::vector<Wish> wishes;
      for (const char* const key : {"rows", "columns", "replicated", "flat"})
        wishes.push_back(wish_box(key, shape, whole(shape)));
      return wishes;
    });
    expect_read_once(outcome.bytes_read, 4 * tensor_bytes());
  }
}

TEST_P(ParallelLoad, TensorAndDataParallelRanksUnderAnotherLayoutReadEachByteOnce) {
  save_all();
  for (const int ranks : {2, 4, 8}) {
    const Outcome outcome = load_wishes(ranks, [&](std::int64_t rank) {
      const std::int64_t part = rank % 2;
      return std::vector<Wish>{
          wish_box("rows", shape, {{0, part * kColumns / 2}, {kRows, kColumns / 2}}),
          wish_box("columns", shape, {{part * kRows / 2, 0}, {kRows / 2, kColumns}}),
          wish_box("replicated", shape, {{part * kRows / 2, 0}, {kRows / 2, kColumns}})};
    });
    expect_read_once(outcome.bytes_read, 3 * tensor_bytes());
  }
}

TEST_P(ParallelLoad, ColumnsOfChunksThatHoldRowsAreReadOnce) {
  const Shape narrow{1536, 512};
  run_ranks(2, [&](Communicator& comm) {
    const std::int64_t rank = comm.rank();
    StateDict state;
    state["narrow"] = ShardedTensor::from_rank_offsets(
        "narrow", part_of_arange(narrow, {{rank * 768, 0}, {768, 512}}),
        {{.axis = 0, .rank = rank, .count = 2}});
    save(state, checkpoint(), {.io = {.fsync = false}}, comm);
  });
  const Outcome outcome = load_wishes(4, [&](std::int64_t rank) {
    return std::vector<Wish>{wish_box("narrow", narrow, {{0, rank * 128}, {1536, 128}})};
  });
  expect_read_once(outcome.bytes_read, static_cast<std::uint64_t>(numel(narrow)) * 4);
}

TEST_P(ParallelLoad, ALoadLikeTheOneBeforeReadsOnceToo) {
  save_all();
  std::vector<LoadPlanCache> caches(4);
  for (const bool again : {false, true}) {
    std::atomic<std::uint64_t> bytes_read = 0;
    run_ranks(4, [&](Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      const Wish columns = wish_box("rows", shape,
                                    {{0, comm.rank() * kColumns / 4}, {kRows, kColumns / 4}}),
                 all = wish_box("replicated", shape, whole(shape));
      StateDict state;
      state["columns"] = columns.shard;
      state["all"] = all.shard;
      bytes_read += load(state, checkpoint(), options(), comm, caches[rank]).bytes_read;
      EXPECT_EQ(caches[rank].cache_hit(), again);
      EXPECT_TRUE(equal(*columns.shard.data, columns.expected));
      EXPECT_TRUE(equal(*all.shard.data, all.expected));
    });
    expect_read_once(bytes_read, 2 * tensor_bytes());
  }
}

TEST_P(ParallelLoad, HalvesOfSmallTensorsAreReadOnce) {
  const Shape small{64, 256};  // 64 KiB
  StateDict state;
  for (int i = 0; i < 50; ++i)
    state[std::to_string(i)] =
        ShardedTensor::whole(std::to_string(i), part_of_arange(small, whole(small)));
  save(state, checkpoint(), {.io = {.fsync = false}});
  const Outcome outcome = load_wishes(2, [&](std::int64_t rank) {
    std::vector<Wish> wishes;
    for (int i = 0; i < 50; ++i)
      wishes.push_back(
          wish_box(std::to_string(i), small,
                   i % 2 == 0 ? Box{{rank * 32, 0}, {32, 256}} : Box{{0, rank * 128}, {64, 128}}));
    return wishes;
  });
  expect_read_once(outcome.bytes_read, 50U * static_cast<std::uint64_t>(numel(small)) * 4);
}

TEST_P(ParallelLoad, UnevenAndOverlappingPartsAreReadOnce) {
  save_all();
  const std::int64_t count = kRows * kColumns;
  const Outcome outcome = load_wishes(4, [&](std::int64_t rank) {
    return std::vector<Wish>{
        wish_box("rows", shape, {{rank * 37, 0}, {kRows - rank * 37, kColumns}}),
        wish_range("flat", shape, rank * count / 5 + rank,
                   std::min(count, (rank + 2) * count / 5 + rank)),
        wish_range("replicated", shape, rank * count / 5,
                   rank == 0 ? count : (rank + 1) * count / 5),
        wish_box("columns", shape, {{rank * 5, 0}, {150 + rank * 9, kColumns}})};
  });
  expect_read_once(outcome.bytes_read, 4 * tensor_bytes());
}

TEST_P(ParallelLoad, WhatARankWantsInSeveralPlacesComesToAllOfThem) {
  save_all();
  const Outcome outcome = load_wishes(3, [&](std::int64_t rank) {
    std::vector<Wish> wishes;
    for (std::int64_t i = 0; i <= rank; ++i)
      wishes.push_back(wish_box("rows", shape, {{30 * i, 0}, {100, kColumns}}));
    return wishes;
  });
  expect_read_once(outcome.bytes_read, tensor_bytes() * 160 / kRows);
}

TEST_P(ParallelLoad, ObjectsComeToEveryRankThatWantsThem) {
  save_all();
  run_ranks(3, [&](Communicator& comm) {
    const auto rank = static_cast<std::int64_t>(comm.rank());
    StateDict state;
    state["object"] = ShardedObject{.key = "object", .has_data = false};
    state["of rank"] = ShardedObject{
        .key = "of_rank", .global_shape = {4}, .global_offset = {rank}, .has_data = false};
    if (rank > 0)
      state["of another"] = ShardedObject{
          .key = "of_rank", .global_shape = {4}, .global_offset = {3}, .has_data = false};
    load(state, checkpoint(), options(), comm);
    EXPECT_EQ(state["object"].as_sharded_object().data, Value(std::string(5000, 'o')));
    EXPECT_EQ(state["of rank"].as_sharded_object().data, Value(rank));
    if (rank > 0) {
      EXPECT_EQ(state["of another"].as_sharded_object().data, Value(std::int64_t{3}));
    }
  });
}

TEST_P(ParallelLoad, WhatAClippedShardLacksIsZeroOnEveryRank) {
  save_all();
  run_ranks(4, [&](Communicator& comm) {
    const Tensor destination = untouched({kRows + 2, kColumns});
    StateDict state;
    state["w"] = ShardedTensor::whole("rows", destination, {.allow_shape_mismatch = true});
    load(state, checkpoint(), options(), comm);
    EXPECT_TRUE(equal(destination.narrow(0, 0, kRows).contiguous(), arange(shape)));
    EXPECT_TRUE(equal(destination.narrow(0, kRows, 2).contiguous(),
                      Tensor::zeros(DType::kFloat32, {2, kColumns})));
  });
}

TEST_P(ParallelLoad, ADamagedChunkThatOneRankReadsIsTheSameErrorOnAll) {
  save_all();
  {
    const auto reader = open_checkpoint(checkpoint());
    const TensorStorageMetadata& tensor = *reader->metadata().find_tensor("columns");
    const StorageInfo& place = tensor.places.back();
    std::fstream file(checkpoint() / reader->metadata().files[place.file],
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(place.offset));
    file.write("damaged", 7);
  }
  const Outcome outcome = load_wishes(4, [&](std::int64_t) {
    return std::vector<Wish>{wish_box("rows", shape, whole(shape)),
                             wish_box("columns", shape, whole(shape))};
  });
  EXPECT_THAT(outcome.errors[0], HasSubstr("columns"));
  EXPECT_THAT(outcome.errors, ::testing::Each(outcome.errors[0]));
}

TEST_P(ParallelLoad, RanksThatSeeDifferentCheckpointsAreTold) {
  save_all();
  const auto other = directory_.path() / "other";
  StateDict state;
  state["rows"] = ShardedTensor::whole("rows", arange(shape));
  save(state, other);
  std::vector<std::string> errors(3);
  run_ranks(3, [&](Communicator& comm) {
    StateDict wanted;
    wanted["w"] = ShardedTensor::whole("rows", untouched(shape));
    try {
      load(wanted, comm.rank() == 1 ? other : checkpoint(), options(), comm);
    } catch (const CheckpointError& error) {
      errors[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("the ranks were given different checkpoints"));
  EXPECT_THAT(errors, ::testing::Each(errors[0]));
}

TEST_P(ParallelLoad, RandomPartsOfRandomRanksAreWhatTheyAreWithoutSharing) {
  save_all();
  testing::Random random;
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(random.trace(round));
    const int ranks = static_cast<int>(random.between(2, 6));
    std::vector<std::vector<Wish>> wishes(static_cast<std::size_t>(ranks));
    for (auto& mine : wishes) {
      for (const char* const key : {"rows", "columns", "replicated", "flat"}) {
        if (random.chance(20)) continue;
        if (random.chance(30)) {
          const std::int64_t begin = random.between(0, kRows * kColumns);
          mine.push_back(wish_range(key, shape, begin, random.between(begin, kRows * kColumns)));
          continue;
        }
        Box box = whole(shape);
        for (std::size_t axis = 0; axis < 2; ++axis) {
          if (random.chance(50)) continue;
          box.offsets[axis] = random.between(0, shape[axis] - 1);
          box.sizes[axis] = random.between(1, shape[axis] - box.offsets[axis]);
        }
        mine.push_back(wish_box(key, shape, box));
      }
    }
    load_wishes(ranks, [&](std::int64_t rank) { return wishes[static_cast<std::size_t>(rank)]; });
  }
}

INSTANTIATE_TEST_SUITE_P(Exchanges, ParallelLoad, Values(Exchange::kAuto, Exchange::kAllToAll),
                         [](const auto& test) {
                           return std::string(name_of(kExchangeNames, test.param));
                         });

}  // namespace
}  // namespace dckpt::parallel_load_test
