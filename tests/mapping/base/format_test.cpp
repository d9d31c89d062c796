#include "mapping/base/format.h"

#include <gtest/gtest.h>

namespace dckpt {
namespace {

TEST(Format, PutsArgumentsInTheirPlaces) {
  EXPECT_EQ(str_format("rank {} is out of range (size {})", -1, std::uint64_t{8}),
            "rank -1 is out of range (size 8)");
  EXPECT_EQ(str_format("{} {:020} {:.2f}{{}}", std::string("a{}"), std::uint64_t{7}, 0.125),
            "a{} 00000000000000000007 0.12{}");
}

}  // namespace
}  // namespace dckpt
