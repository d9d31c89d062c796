#include "tools/dckpt/pictures/bars.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/tools/pictures/picture_text.h"

namespace dckpt::tool::bars_test {
namespace {

using testing::kAscii;
using testing::kNarrow;
using testing::kWide;
using testing::text_of;
using testing::widest;

const std::vector<Bar> kThree = {
    {"weights", 98, "98 MiB"}, {"optimizer", 589, "589 MiB"}, {"other objects", 1, "1 MiB"}};

TEST(Bars, HaveNamesAndTexts) {
  EXPECT_EQ(text_of(bars(kThree, kWide)), R"(
  weights        ██████▋                                    98 MiB
  optimizer      ████████████████████████████████████████  589 MiB
  other objects  ▏                                           1 MiB
)");
  EXPECT_EQ(text_of(bars(kThree, kNarrow)), R"(
  weights        ██▍              98 MiB
  optimizer      ██████████████  589 MiB
  other objects  ▏                 1 MiB
)");
  EXPECT_EQ(text_of(bars(kThree, kAscii)), R"(
  weights        #######                                    98 MiB
  optimizer      ########################################  589 MiB
  other objects  #                                           1 MiB
)");
}

TEST(Bars, OfGroupsHaveOneScale) {
  const std::vector<BarGroup> groups = {
      {"before", {{"one_file.bin", 400, "400 B"}}},
      {"after", {{"rank 0", 100, "100 B"}, {"rank 1", 300, "300 B"}}}};
  EXPECT_EQ(text_of(bars(groups, kNarrow)), R"(
before
  one_file.bin  █████████████████  400 B
after
  rank 0        ████▎              100 B
  rank 1        ████████████▊      300 B
)");
}

TEST(Bars, OfTenThousandTheFirstAndTheLast) {
  std::vector<Bar> ranks;
  for (int i = 0; i < 10'000; ++i)
    ranks.push_back({"rank " + std::to_string(i), 100.0 + i % 7, std::to_string(100 + i % 7)});
  EXPECT_EQ(text_of(bars(ranks, kNarrow)), R"(
  rank 0     ████████████████████▊   100
  rank 1     █████████████████████   101
  rank 2     █████████████████████▏  102
  rank 3     █████████████████████▍  103
  rank 4     █████████████████████▋  104
  rank 5     █████████████████████▊  105
  rank 6     ██████████████████████  106
  rank 7     ████████████████████▊   100
  … 9,985 more, 100 to 106
  rank 9993  █████████████████████▋  104
  rank 9994  █████████████████████▊  105
  rank 9995  ██████████████████████  106
  rank 9996  ████████████████████▊   100
  rank 9997  █████████████████████   101
  rank 9998  █████████████████████▏  102
  rank 9999  █████████████████████▍  103
)");
}

TEST(Bars, OfNothingAreNone) {
  EXPECT_TRUE(bars(std::vector<Bar>{}, kWide).empty());
  EXPECT_TRUE(bars(std::vector<BarGroup>{}, kWide).empty());
  EXPECT_EQ(text_of(bars(std::vector<Bar>{{"a", 0, "0 B"}, {"b", 0, "0 B"}}, kNarrow)), R"(
  a                                  0 B
  b                                  0 B
)");
}

TEST(Bars, StayInsideTheTerminal) {
  for (std::size_t columns = 20; columns < 130; ++columns)
    EXPECT_LE(widest(bars(kThree, {.columns = columns, .color = true})), columns);
  EXPECT_EQ(text_of(bars(kThree, {.columns = 20})), R"(
  w…ghts   98 MiB
  o…izer  589 MiB
  o…ects    1 MiB
)");
}

}  // namespace
}  // namespace dckpt::tool::bars_test
