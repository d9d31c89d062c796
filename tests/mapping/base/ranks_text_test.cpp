#include "mapping/base/ranks_text.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace dckpt::ranks_text_test {
namespace {

TEST(RanksText, NamesTheFirstOfMany) {
  const std::vector<int> few = {0, 2, 5};
  EXPECT_EQ(ranks_text(few), "ranks 0, 2, 5");
  EXPECT_EQ(ranks_text(std::span(few).last(1)), "rank 5");
  std::vector<std::size_t> many(1024);
  std::iota(many.begin(), many.end(), std::size_t{0});
  EXPECT_EQ(ranks_text(many),
            "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 1,008 more");
  EXPECT_TRUE(ranks_text(std::span(many).first(16)).ends_with("14, 15"));
}

}  // namespace
}  // namespace dckpt::ranks_text_test
