#include "mapping/geometry/overlay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/random.h"

namespace dckpt::overlay_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

BoxList list_of(const std::vector<Box>& boxes) {
  BoxList list(boxes.front().dims());
  for (const Box& box : boxes) list.push_back(box);
  return list;
}

bool contains(const Box& box, const Shape& point) {
  for (std::size_t axis = 0; axis < point.size(); ++axis) {
    if (point[axis] < box.offsets[axis] || point[axis] >= box.offsets[axis] + box.sizes[axis])
      return false;
  }
  return true;
}

TEST(Overlay, EqualBoxesAreOnePart) {
  const auto parts = overlay(list_of({{{2, 3}, {4, 5}}, {{2, 3}, {4, 5}}}));
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].box, (Box{{2, 3}, {4, 5}}));
  EXPECT_THAT(parts[0].members, ElementsAre(0, 1));
}

TEST(Overlay, ARowInsideAMatrixCutsItInThree) {
  const auto parts = overlay(list_of({{{0, 0}, {8, 4}}, {{3, 0}, {2, 4}}}));
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[1].box, (Box{{3, 0}, {2, 4}}));
  EXPECT_THAT(parts[1].members, ElementsAre(0, 1));
  EXPECT_THAT(parts[2].members, ElementsAre(0));
}

TEST(Overlay, AGridOfDisjointBoxesStaysAsItIs) {
  BoxList boxes(2);
  for (std::int64_t row = 0; row < 20; ++row) {
    for (std::int64_t column = 0; column < 30; ++column)
      boxes.push_back(Box{{row * 3, column * 2}, {3, 2}});
  }
  EXPECT_EQ(overlay(boxes).size(), boxes.size());
}

TEST(Overlay, BoxesWithoutElementsAreInNoPartAndScalarsInOne) {
  EXPECT_THAT(overlay(list_of({{{0, 1}, {0, 4}}})), IsEmpty());
  EXPECT_THAT(overlay(BoxList(3)), IsEmpty());
  EXPECT_EQ(overlay(list_of({{{}, {}}, {{}, {}}})).size(), 1U);
}

TEST(Overlay, EveryElementIsInOnePartWhoseMembersAreTheBoxesThatHoldIt) {
  testing::Random random;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(random.trace(round));
    std::vector<Box> boxes;
    const auto dims = static_cast<std::size_t>(random.between(1, 3));
    for (std::int64_t count = random.between(1, 8); count > 0; --count) {
      Box box;
      for (std::size_t axis = 0; axis < dims; ++axis) {
        box.offsets.push_back(random.between(0, 6));
        box.sizes.push_back(random.between(0, 7 - box.offsets.back()));
      }
      boxes.push_back(box);
    }
    const auto parts = overlay(list_of(boxes));
    const Shape strides = row_major_strides(Shape(dims, 7));
    for (std::int64_t i = 0; i < numel(Shape(dims, 7)); ++i) {
      Shape point;
      for (std::size_t axis = 0; axis < dims; ++axis) point.push_back(i / strides[axis] % 7);
      std::vector<std::uint32_t> holders;
      for (std::uint32_t box = 0; box < boxes.size(); ++box) {
        if (contains(boxes[box], point)) holders.push_back(box);
      }
      std::vector<std::vector<std::uint32_t>> found;
      for (const OverlayPart& part : parts) {
        if (contains(part.box, point)) found.push_back(part.members);
      }
      ASSERT_EQ(found, std::vector(holders.empty() ? 0 : 1, holders));
    }
  }
}

}  // namespace
}  // namespace dckpt::overlay_test
