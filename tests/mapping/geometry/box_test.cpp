#include "mapping/geometry/box.h"

#include <gmock/gmock.h>

#include <limits>

#include "tests/support/random.h"

namespace dckpt::box_test {
namespace {

constexpr auto kMax = std::numeric_limits<std::int64_t>::max();

bool contains(const Box& box, ShapeView point) {
  for (std::size_t axis = 0; axis < point.size(); ++axis) {
    if (point[axis] < box.offsets[axis] || point[axis] >= box.offsets[axis] + box.sizes[axis])
      return false;
  }
  return true;
}

Box random_box(testing::Random& random, std::size_t dims) {
  Box box;
  for (std::size_t axis = 0; axis < dims; ++axis) {
    box.offsets.push_back(random.between(0, 5));
    box.sizes.push_back(random.between(0, 4));
  }
  return box;
}

TEST(Box, ValidityIsCheckedWithoutOverflow) {
  EXPECT_TRUE(is_valid({{0, kMax - 1}, {1, 1}}));
  EXPECT_FALSE(is_valid({{kMax}, {1}}));
  EXPECT_FALSE(is_valid({{-1}, {1}}));
  EXPECT_FALSE(is_valid({{1}, {-1}}));
  EXPECT_FALSE(is_valid({{0, 0}, {1}}));
}

TEST(Box, FitsUpToTheLastEntry) {
  EXPECT_TRUE(fits({{2, 0}, {2, 5}}, Shape{4, 5}));
  EXPECT_FALSE(fits({{3, 0}, {2, 5}}, Shape{4, 5}));
  EXPECT_TRUE(fits({{4, 0}, {0, 5}}, Shape{4, 5})) << "an empty box may touch the end";
  EXPECT_FALSE(fits({{5, 0}, {0, 5}}, Shape{4, 5}));
  EXPECT_FALSE(fits({{0}, {4}}, Shape{4, 5}));
  EXPECT_TRUE(fits(whole(Shape{}), Shape{}));
}

TEST(Box, IntersectionHoldsExactlyTheCommonPoints) {
  testing::Random random;
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(random.trace(round));
    const auto dims = static_cast<std::size_t>(random.between(1, 3));
    const Box a = random_box(random, dims);
    const Box b = random_box(random, dims);
    const auto common = intersect(a, b);
    std::int64_t points = 0;
    for (std::int64_t number = 0; number < 1000; ++number) {
      const Shape point{number % 10, number / 10 % 10, number / 100};
      const ShapeView at(point.data(), dims);
      if (dims < 3 && point[2] > 0) break;
      if (dims < 2 && point[1] > 0) break;
      const bool both = contains(a, at) && contains(b, at);
      points += both;
      EXPECT_EQ(common && contains(*common, at), both) << to_string(at);
    }
    EXPECT_EQ(common.has_value(), points > 0);
  }
}

TEST(Box, ZeroDimBoxesShareTheirOneElement) {
  EXPECT_EQ(intersect(Box{}, Box{}), Box{});
}

TEST(Box, PrintsAsSlices) {
  EXPECT_EQ(to_string(Box{{0, 8}, {4, 8}}), "[0:4, 8:16]");
}

TEST(BoxList, GivesBackWhatWasAdded) {
  BoxList list(2);
  list.push_back({{0, 1}, {2, 3}});
  list.push_back(Shape{4, 5}, Shape{6, 7});
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0], (Box{{0, 1}, {2, 3}}));
  EXPECT_EQ(list[1], (Box{{4, 5}, {6, 7}}));
  EXPECT_THAT(Shape(list.sizes(1)), ::testing::ElementsAre(6, 7));
}

TEST(BoxList, CountsBoxesOfZeroDimTensors) {
  BoxList list(0);
  list.push_back(Box{});
  list.push_back(Box{});
  EXPECT_EQ(list.size(), 2u);
  EXPECT_EQ(list[1], Box{});
}

}  // namespace
}  // namespace dckpt::box_test
