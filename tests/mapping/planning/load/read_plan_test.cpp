#include "mapping/planning/load/read_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <tuple>

#include "mapping/base/error.h"
#include "mapping/planning/reformulation.h"
#include "mapping/planning/save/global_plan.h"
#include "tests/support/random.h"

namespace dckpt::read_plan_test {
namespace {

using testing::Random;

/// A checkpoint in memory: the tensor's element i has the value i, and each chunk holds its
/// elements row-major.
struct StoredTensor {
  Metadata metadata;
  std::vector<std::vector<std::int64_t>> chunks;
};

/// Returns the elements of `shard` in the order in which its rank holds them.
std::vector<std::int64_t> elements_of(const Box& box, std::optional<WantedShard::Range> range,
                                      const Shape& shape) {
  const Shape strides = row_major_strides(shape);
  const Shape local = row_major_strides(box.sizes);
  const std::int64_t count = numel(box.sizes);
  std::vector<std::int64_t> elements;
  for (std::int64_t i = range ? range->begin : 0; i < (range ? range->end : count); ++i) {
    std::int64_t rest = i;
    std::int64_t global = 0;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      global += (box.offsets[axis] + rest / local[axis]) * strides[axis];
      rest %= local[axis];
    }
    elements.push_back(global);
  }
  return elements;
}

/// Stores shards as a save does: local plans, global plan, chunk contents taken from the shards.
StoredTensor store(const Shape& shape, const std::vector<TensorShard>& shards, FlattenedForm form) {
  std::vector<SavePlan> plans;
  for (std::uint32_t i = 0; i < shards.size(); ++i) {
    const LocalShard shard(shards[i]);
    plans.push_back(plan_local_save({&shard, 1}, form));
  }
  GlobalPlan global = plan_global_save(plans);
  StoredTensor stored;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    const auto held = elements_of(
        shards[rank].box,
        shards[rank].range
            ? std::optional(WantedShard::Range{shards[rank].range->begin, shards[rank].range->end})
            : std::nullopt,
        shape);
    for (const WriteItem& write : final_plan(plans[rank], global.items[rank])) {
      const auto first = held.begin() + write.source_begin;
      stored.chunks.emplace_back(first, first + numel(write.chunk.sizes));
    }
  }
  stored.metadata = std::move(global.metadata);
  return stored;
}

std::vector<std::int64_t> read(const StoredTensor& stored, const WantedShard& wanted) {
  const std::int64_t count =
      wanted.range ? wanted.range->end - wanted.range->begin : numel(wanted.box.sizes);
  std::vector<std::int64_t> result(static_cast<std::size_t>(count), -1);
  for (const ReadItem& item : plan_reads(stored.metadata, {&wanted, 1})) {
    const auto& chunk = stored.chunks[item.chunk];
    const RunPlan plan = plan_runs(item.sizes, item.source, item.target);
    for_each_run(plan, [&](std::int64_t source, std::int64_t target) {
      for (std::int64_t i = 0; i < plan.run; ++i) {
        EXPECT_EQ(result.at(static_cast<std::size_t>(target + i)), -1)
            << "an element is read twice";
        result.at(static_cast<std::size_t>(target + i)) =
            chunk.at(static_cast<std::size_t>(source + i));
      }
    });
  }
  return result;
}

Shape random_shape(Random& random) {
  Shape shape;
  for (std::int64_t axes = random.between(1, 4); axes > 0; --axes)
    shape.push_back(random.between(1, 7));
  return shape;
}

/// Cuts a tensor into a grid with uneven cuts; some pieces may be empty.
std::vector<Box> random_grid(Random& random, const Shape& shape) {
  std::vector<Box> boxes = {{Shape{}, Shape{}}};
  for (const std::int64_t extent : shape) {
    std::vector<std::int64_t> cuts = {0, extent};
    for (std::int64_t i = random.between(0, 2); i > 0; --i)
      cuts.push_back(random.between(0, extent));
    std::sort(cuts.begin(), cuts.end());
    std::vector<Box> next;
    for (const Box& box : boxes) {
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        Box longer = box;
        longer.offsets.push_back(cuts[i]);
        longer.sizes.push_back(cuts[i + 1] - cuts[i]);
        next.push_back(std::move(longer));
      }
    }
    boxes = std::move(next);
  }
  return boxes;
}

/// Cuts each of these pieces into flattened ranges.
std::vector<TensorShard> cut_into_ranges(Random& random, const std::vector<Box>& pieces,
                                         const Shape& shape, const std::optional<Shape>& grid) {
  std::vector<TensorShard> shards;
  for (const Box& box : pieces) {
    const std::int64_t elements = numel(box.sizes);
    std::vector<std::int64_t> cuts = {0, elements};
    for (std::int64_t n = random.between(0, 3); n > 0; --n)
      cuts.push_back(random.between(0, elements));
    std::sort(cuts.begin(), cuts.end());
    for (std::size_t n = 0; n + 1 < cuts.size(); ++n) {
      TensorShard shard;
      shard.key = "w";
      shard.global_shape = shape;
      shard.box = box;
      shard.range = TensorShard::Range{cuts[n], cuts[n + 1]};
      shard.fragmentation = grid;
      shards.push_back(std::move(shard));
    }
  }
  return shards;
}

/// Returns flattened ranges of the pieces of a regular grid.
std::vector<TensorShard> random_flattened(Random& random, const Shape& shape) {
  Shape grid;
  Shape cell;
  for (const std::int64_t extent : shape) {
    std::int64_t pieces = random.between(1, extent);
    while (extent % pieces != 0) --pieces;
    grid.push_back(pieces);
    cell.push_back(extent / pieces);
  }
  std::vector<Box> pieces;
  const Shape strides = row_major_strides(grid);
  for (std::int64_t i = 0; i < numel(grid); ++i) {
    Box box{Shape{}, cell};
    for (std::size_t axis = 0; axis < grid.size(); ++axis)
      box.offsets.push_back(i / strides[axis] % grid[axis] * cell[axis]);
    pieces.push_back(std::move(box));
  }
  return cut_into_ranges(random, pieces, shape, grid);
}

std::vector<TensorShard> plain_shards(const std::vector<Box>& boxes, const Shape& shape) {
  std::vector<TensorShard> shards;
  for (const Box& box : boxes) {
    TensorShard shard;
    shard.key = "w";
    shard.global_shape = shape;
    shard.box = box;
    shards.push_back(std::move(shard));
  }
  return shards;
}

void expect_any_part_can_be_read(Random& random, const StoredTensor& stored, const Shape& shape) {
  for (const Box& box : random_grid(random, shape)) {
    EXPECT_EQ(read(stored, {0, 0, box, std::nullopt}), elements_of(box, std::nullopt, shape));
    const std::int64_t elements = numel(box.sizes);
    const std::int64_t begin = random.between(0, elements);
    const WantedShard::Range range{begin, random.between(begin, elements)};
    EXPECT_EQ(read(stored, {0, 0, box, range}), elements_of(box, range, shape))
        << to_string(box) << " range " << range.begin << ":" << range.end;
  }
}

TEST(PlanReads, FillsAnyBoxAndRangeFromAnyUnevenGrid) {
  Random random;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(random.trace(round));
    const Shape shape = random_shape(random);
    expect_any_part_can_be_read(
        random,
        store(shape, plain_shards(random_grid(random, shape), shape), FlattenedForm::kBoxes),
        shape);
  }
}

TEST(PlanReads, FillsAnyBoxAndRangeFromFlattenedShardsStoredAsBoxes) {
  Random random;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(random.trace(round));
    const Shape shape = random_shape(random);
    expect_any_part_can_be_read(
        random, store(shape, random_flattened(random, shape), FlattenedForm::kBoxes), shape);
  }
}

TEST(PlanReads, FillsAnyBoxAndRangeFromFlattenedShardsOfAnUnevenGrid) {
  Random random;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(random.trace(round));
    const Shape shape = random_shape(random);
    expect_any_part_can_be_read(
        random,
        store(shape, cut_into_ranges(random, random_grid(random, shape), shape, std::nullopt),
              FlattenedForm::kBoxes),
        shape);
  }
}

TEST(PlanReads, FillsAnyBoxAndRangeFromFlattenedShardsInMegatronsForm) {
  Random random;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(random.trace(round));
    const Shape shape = random_shape(random);
    expect_any_part_can_be_read(
        random, store(shape, random_flattened(random, shape), FlattenedForm::kMegatron), shape);
  }
}

TEST(PlanReads, OffsetsAreRelativeToTheStoredAndToTheWantedBox) {
  // Four stored columns of 30 elements, wanted as three of 40.
  std::vector<Box> stored;
  for (std::int64_t i = 0; i < 4; ++i) stored.push_back({{30 * i}, {30}});
  const Metadata metadata =
      store({120}, plain_shards(stored, {120}), FlattenedForm::kBoxes).metadata;
  const WantedShard second{.tensor = 0, .destination = 0, .box = {{40}, {40}}};
  const std::vector<ReadItem> items = plan_reads(metadata, {&second, 1});
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(
      std::tuple(items[0].chunk, items[0].source.offset, items[0].target.offset, items[0].sizes),
      std::tuple(1U, 10, 0, Shape{20}));
  EXPECT_EQ(
      std::tuple(items[1].chunk, items[1].source.offset, items[1].target.offset, items[1].sizes),
      std::tuple(2U, 0, 20, Shape{20}));
}

TEST(PlanReads, FillsAZeroDimensionalTensor) {
  const StoredTensor stored = store(Shape{}, plain_shards({Box{}}, Shape{}), FlattenedForm::kBoxes);
  EXPECT_EQ(read(stored, {0, 0, Box{}, std::nullopt}), std::vector<std::int64_t>{0});
}

TEST(PlanReads, UnderstandsAChunkThatSpansSeveralCellsOfTheGrid) {
  // A (4, 6) tensor in cells of (2, 3), elements 1…4 of all four cells in one chunk, as a tool that
  // merges fragments would store it.
  Metadata metadata;
  TensorStorageMetadata tensor{"w", {}, Shape{2, 2, 6}, BoxList(3), {}, Shape{4, 6}};
  tensor.chunks.push_back(Box{Shape{0, 0, 1}, Shape{2, 2, 4}});
  metadata.tensors.push_back(tensor);
  const WantedShard last_cell{0, 0, Box{Shape{2, 3}, Shape{2, 3}}, WantedShard::Range{1, 5}};
  std::int64_t elements = 0;
  for (const ReadItem& item : plan_reads(metadata, {&last_cell, 1})) {
    EXPECT_GE(item.source.offset, 12) << "the fourth cell follows three of four elements each";
    elements += numel(item.sizes);
  }
  EXPECT_EQ(elements, 4);
}

TEST(PlanReads, RefusesAPartThatIsNotInsideTheTensor) {
  const StoredTensor stored =
      store(Shape{4}, plain_shards({whole(Shape{4})}, Shape{4}), FlattenedForm::kBoxes);
  const WantedShard outside{0, 0, Box{Shape{2}, Shape{3}}, std::nullopt};
  EXPECT_THROW(plan_reads(stored.metadata, {&outside, 1}), CheckpointError);
}

TEST(Reformulation, RecognisesStoredSizesThatCanBelongToAShape) {
  EXPECT_TRUE(may_be_reformulated(Shape{2, 1, 12}, Shape{4, 6}));
  EXPECT_FALSE(may_be_reformulated(Shape{3, 1, 8}, Shape{4, 6}))
      << "three pieces do not divide four rows";
  EXPECT_FALSE(may_be_reformulated(Shape{2, 1, 11}, Shape{4, 6}));
  EXPECT_FALSE(may_be_reformulated(Shape{4, 6}, Shape{4, 6}));
  EXPECT_FALSE(may_be_reformulated(Shape{0, 1, 12}, Shape{4, 6}));
}

}  // namespace
}  // namespace dckpt::read_plan_test
