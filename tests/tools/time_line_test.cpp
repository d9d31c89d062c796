#include "tools/dckpt/render/time_line.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <vector>

namespace dckpt::tool::time_line_test {
namespace {

TEST(TimeLine, MarksStandWhereTheirTimesAre) {
  const std::vector<TimeMark> marks{{100}, {110}, {120, false}, {190}};
  EXPECT_EQ(time_line(marks, 12, true), "├●●○──────●┤");
  EXPECT_EQ(time_line(marks, 12, false), "|oox------o|");
}

TEST(TimeLine, APlaceIsGoodIfAnyOfItsMarksIs) {
  const std::vector<TimeMark> marks{{0, false}, {1, true}, {2, false}, {1000, false}};
  EXPECT_EQ(time_line(marks, 10, false), "|o------x|");
}

TEST(TimeLine, NothingIsDrawnOfTooLittle) {
  const std::vector<TimeMark> two{{1}, {2}}, same{{1}, {1}, {1}}, three{{1}, {2}, {3}};
  EXPECT_EQ(time_line({}, 80, true), "");
  EXPECT_EQ(time_line(two, 80, true), "");
  EXPECT_EQ(time_line(same, 80, true), "");
  EXPECT_EQ(time_line(three, 9, true), "");
  EXPECT_EQ(time_line(three, 10, false), "|o---o--o|");
}

TEST(TimeLine, ExtremeTimesStayInTheLine) {
  using Limits = std::numeric_limits<std::int64_t>;
  const std::vector<TimeMark> marks{{Limits::min()}, {0}, {Limits::max()}};
  EXPECT_EQ(time_line(marks, 11, false), "|o---o---o|");
}

TEST(TimeLine, AgesAreInTheLargestUnitThatSaysSomething) {
  constexpr std::int64_t kMinute = 60'000'000'000, kNow = 10'000'000 * kMinute;
  EXPECT_EQ(age(kNow - 1, kNow), "just now");
  EXPECT_EQ(age(kNow - 119 * kMinute, kNow), "119 min ago");
  EXPECT_EQ(age(kNow - 120 * kMinute, kNow), "2 h ago");
  EXPECT_EQ(age(kNow - 48 * 60 * kMinute, kNow), "2 d ago");
  EXPECT_EQ(age(kNow + 1, kNow), "");
  EXPECT_EQ(age(0, kNow), "");
}

}  // namespace
}  // namespace dckpt::tool::time_line_test
