#include "mapping/geometry/shape.h"

#include <gmock/gmock.h>

#include <limits>

namespace dckpt::shape_test {
namespace {

using ::testing::ElementsAre;

constexpr auto kMax = std::numeric_limits<std::int64_t>::max();

TEST(Shape, NumelIsCheckedAtTheLimit) {
  EXPECT_EQ(checked_numel(Shape{}), 1);
  EXPECT_EQ(checked_numel(Shape{2, 3, 4}), 24);
  EXPECT_EQ(checked_numel(Shape{kMax, 1}), kMax);
  EXPECT_EQ(checked_numel(Shape{kMax, 2}), std::nullopt);
  EXPECT_EQ(checked_numel(Shape{3, -1}), std::nullopt);
}

TEST(Shape, ZeroExtentsNeverOverflow) {
  EXPECT_EQ(checked_numel(Shape{kMax, kMax, 0}), 0);
  EXPECT_EQ(checked_numel(Shape{0, -1}), std::nullopt);
}

TEST(Shape, RowMajorStrides) {
  EXPECT_THAT(row_major_strides(Shape{2, 3, 4}), ElementsAre(12, 4, 1));
  EXPECT_THAT(row_major_strides(Shape{2, 0, 4}), ElementsAre(4, 4, 1)) << "as torch has them";
  EXPECT_THAT(row_major_strides(Shape{}), ElementsAre());
}

TEST(Shape, RowMajorIgnoresAxesOfOneEntry) {
  EXPECT_TRUE(is_row_major(Shape{2, 1, 3}, Shape{3, 99, 1}));
  EXPECT_FALSE(is_row_major(Shape{2, 3}, Shape{4, 1})) << "gaps between the rows";
  EXPECT_FALSE(is_row_major(Shape{2, 3}, Shape{1, 2})) << "transposed";
  EXPECT_TRUE(is_row_major(Shape{2, 0}, Shape{7, 5})) << "no elements";
}

TEST(Shape, PrintsAsPythonTuple) {
  EXPECT_EQ(to_string(Shape{}), "()");
  EXPECT_EQ(to_string(Shape{3}), "(3,)");
  EXPECT_EQ(to_string(Shape{3, -1}), "(3, -1)");
}

TEST(Shape, HoldsMoreAxesThanFitInside) {
  Shape shape(kMaxDims, 1);
  shape[kMaxDims - 1] = 5;
  const Shape copy = shape;
  EXPECT_EQ(numel(copy), 5);
  EXPECT_TRUE(equal(copy, shape));
  EXPECT_FALSE(equal(copy, Shape{5}));
}

TEST(Shape, ATensorWithoutElementsMayHaveExtentsWhoseProductOverflows) {
  const Shape shape{0, std::int64_t{1} << 62, std::int64_t{1} << 62};
  EXPECT_EQ(numel(shape), 0);
  EXPECT_EQ(row_major_strides(shape).size(), 3U);
}

}  // namespace
}  // namespace dckpt::shape_test
