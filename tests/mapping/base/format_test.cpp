#include "mapping/base/format.h"

#include <gtest/gtest.h>

#include <limits>

namespace dckpt::format_test {
namespace {

TEST(Format, PutsArgumentsInTheirPlaces) {
  EXPECT_EQ(str_format("rank {} is out of range (size {})", -1, std::uint64_t{8}),
            "rank -1 is out of range (size 8)");
  EXPECT_EQ(str_format("{} {:020} {:.2f}{{}}", std::string("a{}"), 7u, 0.126),
            "a{} 00000000000000000007 0.13{}");
}

TEST(Format, KeepsWholeNumbersWhole) {
  EXPECT_EQ(str_format("{} {} {}", std::numeric_limits<std::int64_t>::min(),
                       std::numeric_limits<std::uint64_t>::max(), std::uint8_t{65}),
            "-9223372036854775808 18446744073709551615 65");
}

}  // namespace
}  // namespace dckpt::format_test
