#include "mapping/base/fingerprint.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace dckpt::fingerprint_test {
namespace {

TEST(Fingerprint, IsXxh3) {
  EXPECT_EQ(fingerprint_of({}), (Fingerprint{0x6001C324468D497F, 0x99AA06D3014798D8}));
}

TEST(Fingerprint, IsThatOfTheWholeHoweverItArrives) {
  Bytes bytes(3000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i);
  for (const std::size_t step : {1U, 7U, 240U, 1024U, 3000U}) {
    Fingerprinter pieces;
    for (std::size_t at = 0; at < bytes.size(); at += step)
      pieces.update(ByteView(bytes).subspan(at, std::min(step, bytes.size() - at)));
    EXPECT_EQ(pieces.value(), fingerprint_of(bytes)) << step;
  }
  EXPECT_EQ(Fingerprinter().value(), fingerprint_of({}));
}

TEST(Fingerprint, DiffersWhereOneBitDoes) {
  Bytes bytes(100);
  const Fingerprint before = fingerprint_of(bytes);
  bytes[99] = std::byte{1};
  EXPECT_NE(fingerprint_of(bytes), before);
  EXPECT_NE(fingerprint_of(ByteView(bytes).first(99)), before);
}

}  // namespace
}  // namespace dckpt::fingerprint_test
