#include "mapping/geometry/tensor_map.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "tests/support/expect_error.h"
#include "tests/support/random.h"

namespace dckpt::tensor_map_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

Box box_of(const TensorMapLayout& layout, const Shape& shape, int rank) {
  const auto part = local_part(to_mesh_layout(layout, shape), shape, rank);
  EXPECT_EQ(part->pieces.size(), 1U);
  return part->pieces[0].box;
}

TEST(TensorMap, AxesAreCountedFromTheRight) {
  const TensorMapLayout layout{{2, 4}, {{0}, {1}, {-1}}, {0, 1, 2, 3, 4, 5, 6, 7}};
  EXPECT_EQ(
      box_of(layout, {8, 6, 5}, 6),
      (Box{{4, 3, 0}, {2, 3, 5}}));  // at (1, 2): part 2 of 4 along dim 0, part 1 of 2 along dim 1
}

TEST(TensorMap, OfSeveralAxesTheFirstIsTheMajorOne) {
  const std::vector<int> ranks{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(box_of({{2, 4}, {{1, 0}}, ranks}, {16}, 6), (Box{{12}, {2}}));  // at (1, 2): 1 · 4 + 2
  EXPECT_EQ(box_of({{2, 4}, {{0, 1}}, ranks}, {16}, 6), (Box{{10}, {2}}));  // 2 · 2 + 1
}

TEST(TensorMap, EachDimIsCutIntoEqualPartsInMixedRadixOrder) {
  testing::Random random;
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(random.trace(round));
    TensorMapLayout layout;
    for (auto dims = random.between(1, 4); dims > 0; --dims)
      layout.mesh_shape.push_back(random.between(1, 3));
    const auto mesh_dims = static_cast<std::int64_t>(layout.mesh_shape.size());
    layout.rank_list.resize(static_cast<std::size_t>(numel(layout.mesh_shape)));
    std::iota(layout.rank_list.begin(), layout.rank_list.end(), 0);
    std::shuffle(layout.rank_list.begin(), layout.rank_list.end(), random.engine());
    std::vector<std::int64_t> axes(layout.mesh_shape.size());
    std::iota(axes.begin(), axes.end(), 0);
    std::shuffle(axes.begin(), axes.end(), random.engine());
    layout.tensor_map.resize(static_cast<std::size_t>(random.between(1, 3)));
    for (const std::int64_t axis : axes) {
      const auto dim = static_cast<std::size_t>(random.between(0, 3));  // possibly none
      if (dim < layout.tensor_map.size()) layout.tensor_map[dim].push_back(axis);
    }
    const auto extent = [&](std::int64_t axis) {
      return layout.mesh_shape[static_cast<std::size_t>(mesh_dims - 1 - axis)];
    };
    Shape shape;
    for (const auto& cuts : layout.tensor_map) {
      shape.push_back(random.between(1, 3));
      for (const std::int64_t axis : cuts) shape.back() *= extent(axis);
    }
    for (const int rank : layout.rank_list) {
      const Shape coordinate = *DeviceMesh(layout.mesh_shape, layout.rank_list).coordinate_of(rank);
      Box expected{Shape(shape.size()), Shape(shape.size())};
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        std::int64_t parts = 1;
        std::int64_t part = 0;
        for (const std::int64_t axis : layout.tensor_map[dim]) {
          parts *= extent(axis);
          part = part * extent(axis) + coordinate[static_cast<std::size_t>(mesh_dims - 1 - axis)];
        }
        expected.sizes[dim] = shape[dim] / parts;
        expected.offsets[dim] = part * expected.sizes[dim];
      }
      ASSERT_EQ(box_of(layout, shape, rank), expected) << to_string(expected);
    }
  }
}

TEST(TensorMap, RanksOutsideTheListHoldNothing) {
  const MeshLayout layout = to_mesh_layout({{2}, {{0}}, {4, 6}}, Shape{8});
  EXPECT_EQ(local_part(layout, Shape{8}, 6)->pieces[0].box, (Box{{4}, {4}}));
  EXPECT_FALSE(local_part(layout, Shape{8}, 5));
}

TEST(TensorMap, AScalarNeedsNoTensorMap) {
  EXPECT_EQ(local_part(to_mesh_layout({{2}, {}, {0, 1}}, Shape{}), Shape{}, 1)->replica, 1);
}

TEST(TensorMap, RefusesWhatIsMissingOrContradictory) {
  const auto message = [](const TensorMapLayout& layout, const Shape& shape) {
    return error_of([&] { (void)to_mesh_layout(layout, shape); }).message();
  };
  const std::vector<int> ranks{0, 1, 2, 3};
  EXPECT_THAT(message({{}, {{0}}, ranks}, {4}), HasSubstr("no mesh_shape"));
  EXPECT_THAT(message({{2, 2}, {}, ranks}, {4}), HasSubstr("no tensor_map"));
  EXPECT_THAT(message({{2, 2}, {{0}}, {}}, {4}), HasSubstr("no rank_list"));
  EXPECT_THAT(message({{2, 2}, {{0}}, {0, 1}}, {4}), HasSubstr("needs 4 ranks, got 2"));
  EXPECT_THAT(message({{2, 2}, {{0}}, ranks}, {4, 4}),
              HasSubstr("1 entry for a tensor of shape (4, 4)"));
  EXPECT_THAT(message({{2, 2}, {{2}}, ranks}, {4}),
              HasSubstr("mesh axis 2 of tensor dim 0 in tensor_map does not exist"));
  EXPECT_THAT(message({{2, 2}, {{-1, 0}}, ranks}, {4}), HasSubstr("mesh axis -1"));
  EXPECT_THAT(message({{2, 2}, {{1}, {1}}, ranks}, {4, 4}),
              HasSubstr("mesh axis 1 of tensor dim 1 in tensor_map is used twice"));
  EXPECT_THAT(
      message({{2, 2}, {{0, 1}}, ranks}, {6}),
      HasSubstr("extent 6 of tensor dim 0 in tensor_map does not divide into 4 equal parts"));
}

}  // namespace
}  // namespace dckpt::tensor_map_test
