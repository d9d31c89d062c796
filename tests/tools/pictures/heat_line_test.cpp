#include "tools/dckpt/pictures/heat_line.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/tools/pictures/picture_text.h"

namespace dckpt::tool::heat_line_test {
namespace {

using testing::kAscii;
using testing::kNarrow;
using testing::kWide;
using testing::text_of;
using testing::widest;

std::vector<double> shares_of(std::size_t layers) {
  std::vector<double> shares(layers);
  for (std::size_t i = 0; i < layers; ++i)
    shares[i] = i % 5 == 0 ? 0 : i % 5 == 1 ? 0.0005 : i % 5 == 2 ? 0.005 : i % 5 == 3 ? 0.05 : 1;
  return shares;
}

TEST(HeatLine, HasACellForEachLayer) {
  EXPECT_EQ(text_of(heat_line("decoder", shares_of(12), kWide)), R"(
  decoder   0 ·░▒▓█·░▒▓█·░
)");
  EXPECT_EQ(text_of(heat_line("decoder", shares_of(48), kNarrow)), R"(
  decoder   0 ·░▒▓█·░▒▓█·░▒▓█·░▒▓█
           20 ·░▒▓█·░▒▓█·░▒▓█·░▒▓█
           40 ·░▒▓█·░▒
)");
  EXPECT_EQ(text_of(heat_line("decoder", shares_of(12), kAscii)), R"(
  decoder   0 .-+*#.-+*#.-
)");
  EXPECT_EQ(heat_legend(kAscii), ". none, - up to 0.1%, + 1%, * 10%, # more.");
}

TEST(HeatLine, CellsStandForSeveralLayersIfTheyAreMany) {
  std::vector<double> shares(10'000);
  shares[9'999] = 1;
  EXPECT_EQ(text_of(heat_line("decoder", shares, kNarrow)), R"(
  decoder     0 ····················
           1260 ····················
           2520 ····················
           3780 ····················
           5040 ····················
           6300 ····················
           7560 ····················
           8820 ··················█
  each cell: 63 of them
)");
}

TEST(HeatLine, OfNothingIsNone) {
  EXPECT_TRUE(heat_line("decoder", {}, kWide).empty());
  EXPECT_EQ(text_of(heat_line("h", shares_of(1), {.columns = 20})), R"(
  h  0 ·
)");
}

TEST(HeatLine, StaysInsideTheTerminal) {
  for (std::size_t columns = 20; columns < 130; ++columns)
    EXPECT_LE(widest(heat_line("a_long_name.of_a_stack", shares_of(999), {.columns = columns})),
              columns);
}

}  // namespace
}  // namespace dckpt::tool::heat_line_test
