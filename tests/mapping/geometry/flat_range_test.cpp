#include "mapping/geometry/flat_range.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/support/random.h"

namespace dckpt::flat_range_test {
namespace {

using ::testing::ElementsAre;

/// Returns the row-major position of the last element of a box.
std::int64_t last_position(const Box& box, ShapeView shape) {
  const Shape strides = row_major_strides(shape);
  std::int64_t position = 0;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    position += (box.offsets[axis] + box.sizes[axis] - 1) * strides[axis];
  return position;
}

std::int64_t first_position(const Box& box, ShapeView shape) {
  const Shape strides = row_major_strides(shape);
  std::int64_t position = 0;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    position += box.offsets[axis] * strides[axis];
  return position;
}

/// Expects that each piece is contiguous in the row-major order of the shape, and that the pieces
/// follow each other without gap from begin to end, covering the range exactly once.
void expect_exact_cover(ShapeView shape, std::int64_t begin, std::int64_t end) {
  const auto pieces = split_flat_range(shape, begin, end);
  EXPECT_LE(pieces.size(), std::max<std::size_t>(2 * shape.size(), 2) - 1);
  std::int64_t at = begin;
  for (const FlatPiece& piece : pieces) {
    ASSERT_TRUE(fits(piece.box, shape)) << to_string(piece.box);
    EXPECT_EQ(piece.begin, at);
    EXPECT_EQ(first_position(piece.box, shape), at);
    EXPECT_GT(numel(piece.box.sizes), 0);
    EXPECT_EQ(last_position(piece.box, shape) - at + 1, numel(piece.box.sizes))
        << to_string(piece.box) << " is not contiguous";
    at += numel(piece.box.sizes);
  }
  EXPECT_EQ(at, end);
}

TEST(FlatRange, EveryRangeOfSmallShapesIsCoveredExactly) {
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 4}, Shape{1, 5}, Shape{5, 1},
                             Shape{2, 3, 4}, Shape{3, 1, 2, 2}, Shape{2, 2, 2, 2, 2}}) {
    SCOPED_TRACE(to_string(shape));
    for (std::int64_t begin = 0; begin <= numel(shape); ++begin) {
      for (std::int64_t end = begin; end <= numel(shape); ++end)
        expect_exact_cover(shape, begin, end);
    }
  }
}

TEST(FlatRange, RandomRangesOfLargeShapesAreCoveredExactly) {
  testing::Random random;
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(random.trace(round));
    Shape shape;
    for (auto dims = random.between(1, 6); dims > 0; --dims)
      shape.push_back(random.chance(20) ? 1 : random.between(1, 1000));
    const std::int64_t a = random.between(0, numel(shape));
    const std::int64_t b = random.between(0, numel(shape));
    expect_exact_cover(shape, std::min(a, b), std::max(a, b));
  }
}

TEST(FlatRange, WholeRowsStayTogether) {
  const auto pieces = split_flat_range(Shape{4, 5}, 3, 17);
  EXPECT_THAT(pieces, ElementsAre(FlatPiece{{{0, 3}, {1, 2}}, 3}, FlatPiece{{{1, 0}, {2, 5}}, 5},
                                  FlatPiece{{{3, 0}, {1, 2}}, 15}));
}

TEST(FlatRange, TheWholeIsOnePiece) {
  EXPECT_THAT(split_flat_range(Shape{2, 3, 4}, 0, 24),
              ElementsAre(FlatPiece{whole(Shape{2, 3, 4}), 0}));
}

TEST(FlatRange, NothingGivesNoPieces) {
  EXPECT_TRUE(split_flat_range(Shape{4, 5}, 7, 7).empty());
  EXPECT_TRUE(split_flat_range(Shape{4, 0}, 0, 0).empty());
}

}  // namespace
}  // namespace dckpt::flat_range_test
