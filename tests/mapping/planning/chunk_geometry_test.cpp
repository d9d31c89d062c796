#include "mapping/planning/chunk_geometry.h"

#include <gtest/gtest.h>

#include "mapping/planning/load/read_plan.h"
#include "tests/support/random.h"

namespace dckpt::chunk_geometry_test {
namespace {

TensorStorageMetadata stored(Shape size, const Box& chunk) {
  TensorStorageMetadata tensor{
      .key = "t", .size = std::move(size), .chunks = BoxList(chunk.dims())};
  tensor.chunks.push_back(chunk);
  tensor.places.push_back({});
  return tensor;
}

TEST(ChunkGeometry, ABoxLiesAtTheStridesOfItsChunk) {
  const TensorStorageMetadata tensor = stored({10, 10}, {{2, 3}, {4, 5}});
  const ChunkGeometry geometry(tensor, 0);
  EXPECT_EQ(geometry.find({{3, 4}, {2, 2}}), (StridedView{6, {5, 1}}));
  EXPECT_EQ(geometry.find({{2, 3}, {4, 5}}), (StridedView{0, {5, 1}}));
}

TEST(ChunkGeometry, WhatReachesOutOfTheChunkIsNotFound) {
  const TensorStorageMetadata tensor = stored({10, 10}, {{2, 3}, {4, 5}});
  const ChunkGeometry geometry(tensor, 0);
  for (const Box& box :
       {Box{{1, 3}, {2, 2}}, Box{{2, 2}, {2, 2}}, Box{{5, 3}, {2, 2}}, Box{{2, 7}, {1, 2}}})
    EXPECT_FALSE(geometry.find(box)) << to_string(box);
}

TEST(ChunkGeometry, OfAFlatRangeABoxIsFoundIfAllOfItLiesInTheRange) {
  // Pieces of (2, 5) in a grid of (2, 1); the chunk holds the elements 3 to 8 of the second piece.
  TensorStorageMetadata tensor = stored({2, 1, 10}, {{1, 0, 3}, {1, 1, 6}});
  tensor.flattened_shape = Shape{4, 5};
  const ChunkGeometry geometry(tensor, 0);
  EXPECT_EQ(geometry.find({{2, 3}, {1, 2}}), (StridedView{0, {5, 1}}));
  EXPECT_EQ(geometry.find({{3, 0}, {1, 4}}), (StridedView{2, {5, 1}}));
  EXPECT_FALSE(geometry.find({{2, 2}, {1, 2}})) << "begins before the range";
  EXPECT_FALSE(geometry.find({{3, 0}, {1, 5}})) << "ends after it";
  EXPECT_FALSE(geometry.find({{2, 0}, {2, 5}}));
  EXPECT_FALSE(geometry.find({{1, 3}, {2, 2}})) << "reaches over two pieces";
  EXPECT_FALSE(geometry.find({{0, 3}, {1, 2}})) << "another piece";
}

TEST(ChunkGeometry, FindsWhatALoadPlanReads) {
  testing::Random random;
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(random.trace(round));
    const Shape grid{random.between(1, 3), random.between(1, 3)},
        cell{random.between(1, 4), random.between(1, 5)};
    const std::int64_t elements = cell[0] * cell[1], begin = random.between(0, elements - 1);
    const Box chunk{{random.between(0, grid[0] - 1), 0, begin},
                    {1, grid[1], random.between(1, elements - begin)}};
    Metadata metadata;
    metadata.tensors.push_back(stored({grid[0], grid[1], elements}, chunk));
    metadata.tensors[0].flattened_shape = Shape{grid[0] * cell[0], grid[1] * cell[1]};
    const WantedShard wanted{.box = whole(*metadata.tensors[0].flattened_shape)};
    const ChunkGeometry geometry(metadata.tensors[0], 0);
    for (const ReadItem& item : plan_reads(metadata, {&wanted, 1})) {
      const auto view = geometry.find({item.offsets, item.sizes});
      ASSERT_TRUE(view);
      EXPECT_EQ(view->offset, item.source.offset);
      EXPECT_EQ(view->strides, item.source.strides);
    }
  }
}

}  // namespace
}  // namespace dckpt::chunk_geometry_test
