#include "strategies/formats/zstd/zstd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strategies/storage/memory.h"
#include "tests/support/expect_error.h"

namespace dckpt::zstd_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

constexpr std::uint64_t kLimit = std::uint64_t{64} << 20;

/// Returns bytes that repeat, but with a long period.
Bytes content(std::size_t size) {
  Bytes bytes(size);
  std::uint32_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>((state >> 28) & 3);
  }
  return bytes;
}

Bytes encode(ByteView bytes, std::size_t piece) {
  Bytes frame;
  ZstdEncoder encoder([&](ByteView part) { frame.insert(frame.end(), part.begin(), part.end()); });
  for (std::size_t begin = 0; begin < bytes.size(); begin += piece)
    encoder.append(bytes.subspan(begin, std::min(piece, bytes.size() - begin)));
  encoder.finish();
  return frame;
}

std::unique_ptr<ReadableFile> file_of(ByteView bytes) {
  const auto storage = memory_storage();
  const auto file = storage->create("frame");
  file->append(bytes);
  file->close();
  return storage->open("frame");
}

Bytes decode(ByteView frame, std::uint64_t limit = kLimit, std::uint64_t likely = 0) {
  const auto file = file_of(frame);
  return zstd_decode(*file, 0, file->size(), likely, limit);
}

void expect_corrupt(ByteView frame, const std::string& message, std::uint64_t limit = kLimit) {
  const CheckpointError error = error_of([&] { decode(frame, limit); });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr(message));
}

TEST(Zstd, WhatWasEncodedIsDecoded) {
  for (const std::size_t size : {0, 1, 1000, 65536, 3000000}) {
    const Bytes bytes = content(size);
    for (const std::size_t piece : {std::size_t{7777}, std::size_t{1} << 21}) {
      const Bytes frame = encode(bytes, piece);
      EXPECT_EQ(decode(frame), bytes);
      EXPECT_EQ(decode(frame, size, size), bytes) << "the limit is not exceeded";
    }
  }
}

TEST(Zstd, FramesMayLieAnywhereInAFile) {
  const Bytes bytes = content(5000);
  Bytes file(100);
  const Bytes frame = encode(bytes, 5000);
  file.insert(file.end(), frame.begin(), frame.end());
  file.insert(file.end(), frame.begin(), frame.end());
  EXPECT_EQ(zstd_decode(*file_of(file), 100, frame.size(), 0, kLimit), bytes);
  const CheckpointError error =
      error_of([&] { zstd_decode(*file_of(file), 100, 3 * frame.size(), 0, kLimit); });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("but the file ends at"));
}

TEST(Zstd, ABombStopsAtTheLimit) {
  const Bytes bomb = encode(Bytes(std::size_t{16} << 20), std::size_t{1} << 20);
  ASSERT_LT(bomb.size(), 10000U);
  expect_corrupt(bomb, "decodes to more than 1,048,576", std::uint64_t{1} << 20);
  EXPECT_EQ(decode(bomb).size(), std::size_t{16} << 20);
}

TEST(Zstd, DamagedFramesAreRefused) {
  Bytes frame = encode(content(100000), 100000);
  expect_corrupt(ByteView(frame).first(frame.size() - 1), "the zstd frame ends too early");
  expect_corrupt(ByteView(frame).first(0), "the zstd frame ends too early");
  frame[frame.size() / 2] ^= std::byte{1};
  expect_corrupt(frame, "the zstd frame cannot be decoded");
  expect_corrupt(as_bytes("no frame at all"), "the zstd frame cannot be decoded: Unknown frame");
}

}  // namespace
}  // namespace dckpt::zstd_test
