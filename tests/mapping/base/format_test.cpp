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

TEST(Format, WritesRealNumbersSoThatTheyCanBeReadBack) {
  EXPECT_EQ(str_format("{} {} {} {} {}", 1e15, 1e16, 1e-4, 1e-5, 100000.0),
            "1000000000000000 1e+16 0.0001 1e-05 100000");
  EXPECT_EQ(str_format("{} {} {} {}", 0.1, 0.1F, -0.0, 5e-324),
            "0.1 0.10000000149011612 -0 5e-324");
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(
      str_format("{} {:.2f} {:.0f}", -infinite, std::numeric_limits<double>::quiet_NaN(), 2.5),
      "-inf nan 2");
}

TEST(Format, FillsFieldsUpToTheirWidth) {
  EXPECT_EQ(str_format("{:5}|{:05}|{:05}|{:2}|{:5}|", 42, -7, 7, 12345, "ab"),
            "   42|-0007|00007|12345|ab   |");
}

}  // namespace
}  // namespace dckpt::format_test
