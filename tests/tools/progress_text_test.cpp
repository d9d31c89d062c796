#include <gtest/gtest.h>

#include "tools/dckpt/render/progress_line.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool::progress_text_test {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

TEST(ProgressText, ShowsShareBytesRateAndTimeLeft) {
  EXPECT_EQ(progress_text(256 * kMiB, 1024 * kMiB, 2.0),
            " 25%  256.0 MiB of 1.0 GiB  128.0 MiB/s  0:06 left");
  EXPECT_EQ(progress_text(kMiB, 4096 * kMiB, 1.0),
            "  0%  1.0 MiB of 4.0 GiB  1.0 MiB/s  1:08:15 left");
}

TEST(ProgressText, NothingToDoIsDone) {
  EXPECT_EQ(progress_text(0, 0, 1.0), "100%  0 B of 0 B");
  EXPECT_EQ(progress_text(8, 4, 1.0), "100%  8 B of 4 B  8 B/s");
}

TEST(SafeMessage, KeepsLayoutAndEscapesAndDropsWhatATerminalObeys) {
  EXPECT_EQ(safe_message("two\nlines, 'a\\x1b' é"), "two\nlines, 'a\\x1b' é");
  EXPECT_EQ(safe_message("a\x1b[2Jb\x07\xff"), "a\\x1b[2Jb\\x07\\xff");
}

}  // namespace
}  // namespace dckpt::tool::progress_text_test
