#include "tools/dckpt/pictures/waterfall.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/tools/pictures/picture_text.h"

namespace dckpt::tool::waterfall_test {
namespace {

using testing::kAscii;
using testing::kNarrow;
using testing::kWide;
using testing::text_of;
using testing::widest;

const std::vector<TimeSpan> kSave = {{"plan", 0, 0.5, 0.5},
                                     {"write", 0.5, 6, 8},
                                     {"sync", 7.5, 0.25, 1},
                                     {"publish", 8.5, 0.001, 0.001}};

TEST(Waterfall, PutsPhasesUnderTheAxisOfTime) {
  EXPECT_EQ(text_of(waterfall(kSave, kWide)), R"(
           0 s                                                  8.501 s
  plan     ████                                                          0.500 s
  write        ██████████████████████████████████████████░░░░░░░░░░░░░░  8.000 s
  sync                                                          ██░░░░░  1.000 s
  publish                                                             █  0.001 s
)");
  EXPECT_EQ(text_of(waterfall(kSave, kNarrow)), R"(
           0 s          8.501 s
  plan     █                     0.500 s
  write     ██████████████░░░░░  8.000 s
  sync                       ░░  1.000 s
  publish                     █  0.001 s
)");
  EXPECT_EQ(text_of(waterfall(kSave, kAscii)), R"(
           0 s                                                  8.501 s
  plan     ####                                                          0.500 s
  write        ##########################################--------------  8.000 s
  sync                                                          ##-----  1.000 s
  publish                                                             #  0.001 s
)");
}

TEST(Waterfall, OfNothingIsNone) {
  EXPECT_TRUE(waterfall({}, kWide).empty());
  EXPECT_TRUE(waterfall(std::vector<TimeSpan>{{"plan", 0, 0, 0}}, kWide).empty());
  EXPECT_TRUE(waterfall(std::vector<TimeSpan>{{"plan", 0, 0, INFINITY}}, kWide).empty());
}

TEST(Waterfall, StaysInsideTheTerminal) {
  for (std::size_t columns = 20; columns < 130; ++columns)
    EXPECT_LE(widest(waterfall(kSave, {.columns = columns, .color = true})), columns);
}

}  // namespace
}  // namespace dckpt::tool::waterfall_test
