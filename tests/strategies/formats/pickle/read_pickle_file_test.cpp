#include "strategies/formats/pickle/read_pickle_file.h"

#include <gmock/gmock.h>

#include "mapping/base/error.h"
#include "strategies/formats/pickle/writer.h"
#include "tests/support/expect_error.h"

namespace dckpt::pickle::read_pickle_file_test {
namespace {

constexpr std::uint64_t kLarge = std::uint64_t{1} << 30;

/// A file that begins with some bytes, ends with one, and has zeros between. It counts the bytes
/// read.
class LargeFile final : public ReadableFile {
 public:
  LargeFile(std::string begin, char last) : begin_(std::move(begin)), last_(last) {}

  const std::string& name() const noexcept override { return name_; }
  std::uint64_t size() const noexcept override { return kLarge; }
  void read(std::uint64_t offset, MutableByteView into) const override {
    read_ += into.size();
    for (std::size_t i = 0; i < into.size(); ++i) {
      const std::uint64_t at = offset + i;
      into[i] = static_cast<std::byte>(at < begin_.size() ? begin_[at]
                                       : at + 1 == kLarge ? last_
                                                          : 0);
    }
  }
  void prefetch(std::uint64_t, std::uint64_t) const override {}
  std::uint64_t bytes_read() const { return read_; }

 private:
  std::string name_ = "large";
  std::string begin_;
  char last_;
  mutable std::uint64_t read_ = 0;
};

TEST(ReadPickleFile, WhatIsNoPickleIsNotReadWhole) {
  using namespace std::string_literals;
  const std::string valid =
      "\x80\x04\x95\x10\0\0\0\0\0\0\0}\x94(\x8c\x01k\x94K\x01C\x02.. X\x03\0\0\0abcc"s +
      "torch\nfloat32\nu"s;
  for (const std::string& begin : {""s, "PK\x03\x04"s, "{\"a\": 1}"s, "\x80\x04"s, valid}) {
    const LargeFile file(begin, '.');
    const CheckpointError error = testing::error_of([&] { read_pickle_file(file, 2 * kLarge); });
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("holds no pickle"));
    EXPECT_LE(file.bytes_read(), std::uint64_t{64} << 10);
  }
  const LargeFile old("(lp0\n"s, '.');
  const CheckpointError refused = testing::error_of([&] { read_pickle_file(old, 2 * kLarge); });
  EXPECT_EQ(refused.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refused.what(), ::testing::HasSubstr("LIST"));
  const LargeFile unfinished("\x80\x04\x8e\0\0\0\x20\0\0\0\0"s, '\0');
  EXPECT_THAT(testing::error_of([&] { read_pickle_file(unfinished, 2 * kLarge); }).what(),
              ::testing::HasSubstr("STOP"));
}

}  // namespace
}  // namespace dckpt::pickle::read_pickle_file_test
