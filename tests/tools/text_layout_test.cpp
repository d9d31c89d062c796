#include "tools/dckpt/render/text_layout.h"

#include <gtest/gtest.h>

namespace dckpt::tool::text_layout_test {
namespace {

TEST(TextLayout, CountsColumnsRatherThanBytes) {
  EXPECT_EQ(columns_of("plain"), 5u);
  EXPECT_EQ(columns_of("…×█"), 3u);
  EXPECT_EQ(columns_of("\x1b[31mred\x1b[0m"), 3u);
  EXPECT_EQ(columns_of("重み"), 4u);
  EXPECT_EQ(columns_of("e\u0301"), 1u);
  EXPECT_EQ(columns_of("\xff\xc3"), 2u) << "not UTF-8";
}

TEST(TextLayout, LinesAreBrokenAtBlanks) {
  EXPECT_EQ(wrapped("short", 10), "short");
  EXPECT_EQ(wrapped("one two three four", 9), "one two\nthree\nfour");
  EXPECT_EQ(wrapped("  one two three", 9), "  one two\n  three");
  EXPECT_EQ(wrapped("  --to F  Format to write", 20), "  --to F  Format to\n          write");
  EXPECT_EQ(wrapped("  dckpt inspect a --tree", 16), "  dckpt inspect\n      a --tree");
  EXPECT_EQ(wrapped("", 10), "");
}

TEST(TextLayout, AWordThatIsTooLongStaysWhole) {
  EXPECT_EQ(wrapped("from /a/long/path/of/a/checkpoint here", 10),
            "from\n/a/long/path/of/a/checkpoint\nhere");
  EXPECT_EQ(wrapped("at  /a/long/path/of/a/checkpoint", 10), "at  /a/long/path/of/a/checkpoint");
}

TEST(TextLayout, NamesLoseTheirMiddle) {
  const std::string key = "decoder.layers.self_attention.linear_qkv.weight";
  EXPECT_EQ(shortened(key, 47, true), key);
  EXPECT_EQ(shortened(key, 34, true), "decoder.layers…linear_qkv.weight");
  EXPECT_EQ(shortened(key, 20, true), "decod…ear_qkv.weight");
  EXPECT_EQ(shortened(key, 20, false), "decod...r_qkv.weight");
  EXPECT_EQ(shortened("no_components_in_this_name", 11, true), "no_…is_name");
  EXPECT_EQ(shortened("重み重み重み", 5, true), "重…み");
  for (std::size_t columns = 0; columns < 60; ++columns) {
    EXPECT_LE(columns_of(shortened(key, columns, true)), columns);
    EXPECT_LE(columns_of(shortened(key, columns, false)), columns);
  }
}

}  // namespace
}  // namespace dckpt::tool::text_layout_test
