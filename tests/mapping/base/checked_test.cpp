#include "mapping/base/checked.h"

#include <gtest/gtest.h>

#include <limits>

namespace dckpt::checked_test {
namespace {

constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
constexpr auto kUnsignedMax = std::numeric_limits<std::uint64_t>::max();

TEST(Checked, AddsUpToTheLimit) {
  EXPECT_EQ(checked_add(kMax - 1, std::int64_t{1}), kMax);
  EXPECT_EQ(checked_add(kMax, std::int64_t{1}), std::nullopt);
  EXPECT_EQ(checked_add(kUnsignedMax, std::uint64_t{1}), std::nullopt);
}

TEST(Checked, MultipliesUpToTheLimit) {
  EXPECT_EQ(checked_mul(kMax / 2, std::int64_t{2}), kMax - 1);
  EXPECT_EQ(checked_mul(kMax / 2 + 1, std::int64_t{2}), std::nullopt);
}

TEST(Checked, RangesFitWithoutOverflow) {
  EXPECT_TRUE(range_fits(10, 0, 10));
  EXPECT_TRUE(range_fits(3, 7, 10));
  EXPECT_FALSE(range_fits(3, 8, 10));
  EXPECT_FALSE(range_fits(11, 0, 10));
  EXPECT_FALSE(range_fits(kUnsignedMax, 2, 10));
  EXPECT_FALSE(range_fits(2, kUnsignedMax, 10));
}

}  // namespace
}  // namespace dckpt::checked_test
