#include "strategies/tensor_io/streaming_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace dckpt::streaming_copy_test {
namespace {

TEST(StreamingCopy, CopiesWhatItIsToldAndNothingElse) {
  constexpr std::byte kBefore{0xEE};
  std::vector<std::byte> source(400);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i % 251);
  for (const std::size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 200, 300}) {
    for (const std::size_t from : {0, 1, 17}) {
      for (const std::size_t to : {0, 1, 8, 63, 64}) {
        std::vector<std::byte> copy(400, kBefore);
        std::vector<std::byte> expected = copy;
        std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(to));
        streaming_copy(copy.data() + to, source.data() + from, bytes);
        EXPECT_EQ(copy, expected) << bytes << " bytes from " << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace dckpt::streaming_copy_test
