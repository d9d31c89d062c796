#include "strategies/comm/device_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace dckpt::device_exchange_test {
namespace {

TEST(DeviceBox, AnyBytesOfItAreRowsOfTheTensor) {
  std::mt19937 random{7};
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  for (int turn = 0; turn < 500; ++turn) {
    Shape sizes;
    Shape shape;
    for (std::uint64_t axis = below(4); axis > 0; --axis) {
      sizes.push_back(static_cast<std::int64_t>(1 + below(5)));
      shape.push_back(sizes.back() + static_cast<std::int64_t>(below(3)));
    }
    Shape strides = row_major_strides(shape);
    if (below(2) == 0) {  // strides of the transpose
      std::ranges::reverse(shape);
      strides = row_major_strides(shape);
      std::ranges::reverse(strides);
    }
    const std::size_t item_size = std::size_t{1} << below(4);
    Bytes memory(static_cast<std::size_t>(numel(shape)) * item_size);
    for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
    const DeviceBox box{memory.data(), item_size, sizes, {0, strides}};
    Bytes dense(static_cast<std::size_t>(numel(sizes)) * item_size);
    strided_copy(sizes, item_size, memory.data(), box.view, dense.data(),
                 {0, row_major_strides(sizes)});

    const std::uint64_t begin = below(dense.size());
    const std::uint64_t length = 1 + below(dense.size() - begin);
    Bytes copied(length);
    std::uint64_t count = 0;
    for_each_rows(box, begin, length, [&](const PitchedRows& rows) {
      for (std::int64_t row = 0; row < rows.rows; ++row) {
        std::memcpy(copied.data() + rows.destination + row * rows.destination_pitch,
                    memory.data() + rows.source + row * rows.source_pitch,
                    static_cast<std::size_t>(rows.run));
        count += static_cast<std::uint64_t>(rows.run);
      }
    });
    EXPECT_EQ(count, length);
    EXPECT_TRUE(std::ranges::equal(copied, ByteView(dense).subspan(begin, length)));
  }
}

TEST(MessageParts, AStretchIsFoundInAllPartsThatItTouches) {
  const std::vector<MessagePart> parts = {{.bytes = 3}, {.bytes = 0}, {.bytes = 4}, {.bytes = 2}};
  EXPECT_EQ(length_of(parts), 9U);
  std::vector<std::vector<std::uint64_t>> seen;
  for_each_stretch(
      parts, 2, 6,
      [&](const MessagePart& part, std::uint64_t begin, std::uint64_t length, std::uint64_t at) {
        seen.push_back({static_cast<std::uint64_t>(&part - parts.data()), begin, length, at});
      });
  EXPECT_EQ(seen,
            (std::vector<std::vector<std::uint64_t>>{{0, 2, 1, 0}, {2, 0, 4, 1}, {3, 0, 1, 5}}));
}

}  // namespace
}  // namespace dckpt::device_exchange_test
