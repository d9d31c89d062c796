#include "migration/rank_folders/parameter_cut.h"

#include <gtest/gtest.h>

#include <limits>

namespace dckpt::parameter_cut_test {
namespace {

constexpr ParameterCut kRows{.axis = TensorParallel::kRows};
constexpr ParameterCut kColumns{.axis = TensorParallel::kColumns};
constexpr ParameterCut kGated{.axis = TensorParallel::kRows, .gated = true};

TEST(ParameterCut, ARankOfAGatedMlpHoldsItsShareOfBothHalves) {
  const std::vector<CutPart> parts = cut_parts(kGated, Shape{4, 3}, 1, 2);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].local, (Box{{0, 0}, {2, 3}}));
  EXPECT_EQ(parts[0].whole, (Box{{2, 0}, {2, 3}}));
  EXPECT_EQ(parts[1].local, (Box{{2, 0}, {2, 3}}));
  EXPECT_EQ(parts[1].whole, (Box{{6, 0}, {2, 3}}));
}

TEST(ParameterCut, ColumnsAreSharedAndCopiesAreNot) {
  EXPECT_EQ(cut_parts(kColumns, Shape{4, 3}, 2, 3).front().whole, (Box{{0, 6}, {4, 3}}));
  EXPECT_EQ(cut_parts({}, Shape{4}, 2, 3).front().whole, (Box{{0}, {4}}));
  EXPECT_EQ(cut_parts({}, Shape{}, 2, 3).size(), 1U);
}

TEST(ParameterCut, ShapesThereAndBack) {
  for (const ParameterCut& cut : {ParameterCut{}, kRows, kColumns, kGated}) {
    const auto whole = whole_shape(cut, Shape{4, 6}, 3);
    ASSERT_TRUE(whole);
    EXPECT_EQ(local_shape(cut, *whole, 3), (Shape{4, 6}));
  }
  EXPECT_EQ(local_shape(kRows, Shape{7, 2}, 2), std::nullopt);
  EXPECT_EQ(local_shape(kGated, Shape{6, 2}, 2), std::nullopt) << "a half has three rows";
  EXPECT_EQ(local_shape(kColumns, Shape{8}, 2), std::nullopt) << "there are no columns";
  EXPECT_EQ(whole_shape(kRows, Shape{std::numeric_limits<std::int64_t>::max() / 2}, 2),
            std::nullopt);
}

TEST(ParameterCut, GatesAreToldByTheOtherMatrix) {
  EXPECT_EQ(gated_partner("decoder.layers.mlp.linear_fc1.bias"),
            "decoder.layers.mlp.linear_fc2.weight");
  EXPECT_EQ(gated_partner("decoder.layers.mlp.linear_fc1.layer_norm_weight"), std::nullopt);
  EXPECT_TRUE(is_gated(Shape{8, 3}, Shape{3, 4}));
  EXPECT_FALSE(is_gated(Shape{4, 3}, Shape{3, 4}));
}

}  // namespace
}  // namespace dckpt::parameter_cut_test
