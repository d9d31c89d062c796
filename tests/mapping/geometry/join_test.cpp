#include "mapping/geometry/join.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "mapping/geometry/overlay.h"
#include "tests/support/random.h"

namespace dckpt::join_test {
namespace {

using ::testing::ElementsAre;

bool always(const Box&) {
  return true;
}

TEST(JoinBoxes, ColumnsBecomeOneBox) {
  const std::vector<Box> boxes = {{{0, 0}, {8, 3}}, {{0, 3}, {8, 3}}, {{0, 6}, {8, 2}}};
  const auto joined = join_boxes(boxes, always);
  ASSERT_EQ(joined.size(), 1U);
  EXPECT_EQ(joined[0].box, (Box{{0, 0}, {8, 8}}));
  EXPECT_THAT(joined[0].members, ElementsAre(0, 1, 2));
}

TEST(JoinBoxes, AGridBecomesOneBoxWhateverTheOrder) {
  const std::vector<Box> boxes = {
      {{4, 4}, {4, 4}}, {{0, 0}, {4, 4}}, {{4, 0}, {4, 4}}, {{0, 4}, {4, 4}}};
  EXPECT_EQ(join_boxes(boxes, always).size(), 1U);
}

TEST(JoinBoxes, AGapOfATwentiethIsTakenInAndNoLargerOne) {
  EXPECT_EQ(join_boxes(std::vector<Box>{{{0, 0}, {1, 10}}, {{0, 11}, {1, 10}}}, always).size(), 1U);
  EXPECT_EQ(join_boxes(std::vector<Box>{{{0, 0}, {1, 10}}, {{0, 11}, {1, 9}}}, always).size(), 2U);
}

TEST(JoinBoxes, OnlyAllowedBoxesAreMade) {
  const std::vector<Box> boxes = {{{0, 0}, {8, 4}}, {{0, 4}, {8, 4}}};
  EXPECT_EQ(join_boxes(boxes, [](const Box& box) { return box.sizes[1] < 8; }).size(), 2U);
}

TEST(JoinBoxes, NothingAndAScalarAreFine) {
  EXPECT_TRUE(join_boxes({}, always).empty());
  EXPECT_EQ(join_boxes(std::vector<Box>{Box{}}, always).size(), 1U);
}

TEST(JoinBoxes, EveryBoxIsInOneAnswerThatHoldsItAndHardlyMore) {
  testing::Random random;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(random.trace(round));
    BoxList wishes(3);
    for (std::int64_t count = random.between(1, 6); count > 0; --count) {
      Box box{Shape(3), Shape(3)};
      for (std::size_t axis = 0; axis < 3; ++axis) {
        box.offsets[axis] = random.between(0, 9);
        box.sizes[axis] = random.between(1, 10);
      }
      wishes.push_back(box);
    }
    std::vector<Box> boxes;
    for (const OverlayPart& part : overlay(wishes)) boxes.push_back(part.box);
    std::vector<int> seen(boxes.size());
    for (const JoinedBox& joined : join_boxes(boxes, always)) {
      std::int64_t elements = 0;
      for (const std::uint32_t member : joined.members) {
        ++seen[member];
        elements += numel(boxes[member].sizes);
        EXPECT_EQ(intersect(joined.box, boxes[member]), boxes[member]);
      }
      EXPECT_LE(numel(joined.box.sizes), elements + elements / 20);
    }
    EXPECT_THAT(seen, ::testing::Each(1));
  }
}

}  // namespace
}  // namespace dckpt::join_test
