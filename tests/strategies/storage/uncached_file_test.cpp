#include "strategies/storage/uncached_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "mapping/base/parallel_for.h"
#include "strategies/storage/posix.h"
#include "tests/support/expect_error.h"
#include "tests/support/page_cache.h"
#include "tests/support/temp_dir.h"

namespace dckpt::uncached_file_test {
namespace {

namespace fs = std::filesystem;

class UncachedFileTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kSize = (std::size_t{9} << 20) + 1234;

  UncachedFileTest() : content_(kSize) {
    for (std::size_t i = 0; i < kSize; ++i) content_[i] = static_cast<std::byte>(i * 41 >> 5);
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(content_.data()), kSize);
    file_ = open_posix_file(path_);
    testing::drop_from_cache(path_);
    if (!testing::can_be_cold(path_))
      skipped_ = "only ext4 and XFS files are read past the page cache, where Linux has cachestat";
  }

  const UncachedFile& uncached() const { return dynamic_cast<const UncachedFile&>(*file_); }

  Bytes read(std::uint64_t offset, std::uint64_t length) const {
    Bytes all;
    EXPECT_TRUE(uncached().read_past_cache(offset, length, [&](ByteView bytes) {
      all.insert(all.end(), bytes.begin(), bytes.end());
    }));
    return all;
  }

  TempDir folder_;
  fs::path path_ = folder_ / "file";
  Bytes content_;
  std::unique_ptr<ReadableFile> file_;
  std::string skipped_;
};

TEST_F(UncachedFileTest, AnyRangeIsReadAndTheCacheStaysEmpty) {
  if (!skipped_.empty()) GTEST_SKIP() << skipped_;
  EXPECT_TRUE(uncached().is_cold(0, kSize));
  constexpr std::uint64_t kBlock = std::uint64_t{4} << 20;
  for (const auto& [offset, length] : {std::pair<std::uint64_t, std::uint64_t>{0, kSize},
                                       {1, kSize - 1},
                                       {4095, 2},
                                       {4096, 4096},
                                       {kBlock - 1, 2},
                                       {5, kBlock},
                                       {kSize - 1, 1},
                                       {kSize, 0}}) {
    const auto begin = content_.begin() + static_cast<std::ptrdiff_t>(offset);
    const Bytes expected(begin, begin + static_cast<std::ptrdiff_t>(length));
    EXPECT_TRUE(read(offset, length) == expected) << offset << " " << length;
  }
  EXPECT_EQ(testing::cached_pages(path_), 0u);
}

TEST_F(UncachedFileTest, WhatIsInTheCacheIsNotCold) {
  if (!skipped_.empty()) GTEST_SKIP() << skipped_;
  Bytes bytes(kSize);
  file_->read(0, bytes);
  EXPECT_FALSE(uncached().is_cold(0, kSize));
  EXPECT_TRUE(read(0, kSize) == content_) << "but can be read so";
}

TEST_F(UncachedFileTest, SeveralThreadsReadOneFile) {
  if (!skipped_.empty()) GTEST_SKIP() << skipped_;
  parallel_for(8, 4, [&](std::size_t i) {
    const std::size_t begin = kSize * i / 8;
    const Bytes part = read(begin, kSize * (i + 1) / 8 - begin);
    EXPECT_TRUE(std::ranges::equal(part, ByteView(content_).subspan(begin, part.size())));
  });
}

TEST_F(UncachedFileTest, RangesOutsideTheFileAreForTheOtherWay) {
  EXPECT_FALSE(uncached().read_past_cache(kSize, 1, [](ByteView) { FAIL(); }));
  EXPECT_FALSE(uncached().read_past_cache(1, UINT64_MAX, [](ByteView) { FAIL(); }));
}

TEST_F(UncachedFileTest, AFileThatShrinksIsAnError) {
  fs::resize_file(path_, (std::size_t{5} << 20) + 77);
  const CheckpointError error = testing::error_of([&] {
    Bytes bytes(kSize);
    if (!uncached().read_past_cache(0, kSize, [](ByteView) {})) file_->read(0, bytes);
  });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), ::testing::HasSubstr("truncated it meanwhile"));
}

}  // namespace
}  // namespace dckpt::uncached_file_test
