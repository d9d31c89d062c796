#include "mapping/geometry/strided_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/support/random.h"

namespace dckpt::strided_copy_test {
namespace {

/// Returns the strides of a tensor whose axes are in random order in memory, with occasional gaps.
/// `extent` becomes the number of elements that it spans.
Shape random_strides(testing::Random& random, ShapeView sizes, std::int64_t& extent) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (random.chance(60)) std::shuffle(order.begin(), order.end(), random.engine());
  Shape strides(sizes.size());
  extent = 1;
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    strides[*axis] = extent;
    extent *= std::max<std::int64_t>(sizes[*axis], 1);
    if (random.chance(20)) extent += random.between(1, 3);
  }
  return strides;
}

template <typename Body>
void for_each_index(ShapeView sizes, Body&& body) {
  for (std::int64_t number = 0; number < numel(sizes); ++number) {
    Shape index(sizes.size());
    std::int64_t rest = number;
    for (std::size_t axis = sizes.size(); axis-- > 0; rest /= sizes[axis])
      index[axis] = rest % sizes[axis];
    body(index);
  }
}

std::size_t address(const StridedView& view, ShapeView index) {
  std::int64_t at = view.offset;
  for (std::size_t axis = 0; axis < index.size(); ++axis) at += index[axis] * view.strides[axis];
  return static_cast<std::size_t>(at);
}

TEST(StridedCopy, AgreesWithOneElementAtATime) {
  testing::Random random;
  for (int round = 0; round < 1000; ++round) {
    SCOPED_TRACE(random.trace(round));
    Shape sizes;
    for (auto dims = random.between(0, 5); dims > 0; --dims)
      sizes.push_back(random.chance(5) ? 0 : random.between(1, 4));
    const auto item = static_cast<std::size_t>(std::vector<std::int64_t>{
        1, 2, 3, 4, 8, 16}[static_cast<std::size_t>(random.between(0, 5))]);
    StridedView source{random.between(0, 3), {}};
    StridedView target{random.between(0, 3), {}};
    std::int64_t source_extent = 0;
    std::int64_t target_extent = 0;
    source.strides = random_strides(random, sizes, source_extent);
    target.strides = random_strides(random, sizes, target_extent);
    std::vector<std::byte> from(static_cast<std::size_t>(source.offset + source_extent) * item);
    for (std::byte& byte : from) byte = static_cast<std::byte>(random.between(0, 255));
    std::vector<std::byte> copied(static_cast<std::size_t>(target.offset + target_extent) * item,
                                  std::byte{0xAA});
    std::vector<std::byte> expected = copied;
    for_each_index(sizes, [&](const Shape& index) {
      std::memcpy(expected.data() + address(target, index) * item,
                  from.data() + address(source, index) * item, item);
    });
    strided_copy(sizes, item, from.data(), source, copied.data(), target);
    EXPECT_EQ(copied, expected) << to_string(sizes);
  }
}

TEST(PlanRuns, MergesAxesThatAreDenseOnBothSides) {
  const RunPlan plan = plan_runs(Shape{4, 2, 3}, {0, {6, 3, 1}}, {5, {6, 3, 1}});
  EXPECT_EQ(plan.run, 24);
  EXPECT_TRUE(plan.counts.empty());
  EXPECT_EQ(plan.destination_offset, 5);
}

TEST(PlanRuns, KeepsAxesThatAreCutOnOneSide) {
  const RunPlan plan = plan_runs(Shape{4, 2, 3}, {0, {6, 3, 1}}, {0, {60, 10, 1}});
  EXPECT_EQ(plan.run, 3);
  EXPECT_EQ(plan.counts, (Shape{4, 2}));
}

TEST(PlanRuns, JoinsOuterAxesThatContinueEachOther) {
  const RunPlan plan = plan_runs(Shape{4, 2, 3}, {0, {20, 10, 1}}, {0, {14, 7, 1}});
  EXPECT_EQ(plan.counts, (Shape{8}));
  EXPECT_EQ(plan.source_strides, (Shape{10}));
}

TEST(PlanRuns, NothingToCopyGivesNoRuns) {
  int runs = 0;
  for_each_run(plan_runs(Shape{4, 0}, {0, {1, 1}}, {0, {1, 1}}),
               [&](std::int64_t, std::int64_t) { ++runs; });
  EXPECT_EQ(runs, 0);
}

TEST(PlanRuns, OneElementIsOneRun) {
  int runs = 0;
  for_each_run(plan_runs(Shape{}, {3, {}}, {4, {}}),
               [&](std::int64_t source, std::int64_t destination) {
                 ++runs;
                 EXPECT_EQ(source, 3);
                 EXPECT_EQ(destination, 4);
               });
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace dckpt::strided_copy_test
