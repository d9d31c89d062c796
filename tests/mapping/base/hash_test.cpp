#include "mapping/base/hash.h"

#include <gtest/gtest.h>

#include <string>

namespace dckpt::hash_test {
namespace {

std::string numbers(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text.push_back(static_cast<char>(i * 31 + i / 256));
  return text;
}

TEST(Crc32, IsThatOfZip) {
  EXPECT_EQ(crc32({}), 0u);
  EXPECT_EQ(crc32({}, 7), 7u);                           // an empty addition changes nothing
  EXPECT_EQ(crc32(as_bytes("123456789")), 0xcbf43926u);  // check value of the CRC catalog
  EXPECT_EQ(crc32(as_bytes("3\n")), 0x55679ed1u);        // torch's version member
}

TEST(Crc32, GoesOnFromEarlierBytes) {
  const std::string text = numbers(100000);
  for (const std::size_t cut : {0, 1, 7, 64, 4096, 99999, 100000}) {
    const std::string_view view = text;
    EXPECT_EQ(crc32(as_bytes(view.substr(cut)), crc32(as_bytes(view.substr(0, cut)))),
              crc32(as_bytes(view)))
        << cut;
    EXPECT_EQ(crc32_combine(crc32(as_bytes(view.substr(0, cut))), crc32(as_bytes(view.substr(cut))),
                            view.size() - cut),
              crc32(as_bytes(view)))
        << cut;
  }
}

// FIPS 180-2, appendix B.
TEST(Sha256, FollowsTheStandard) {
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(as_bytes("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(as_bytes(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, TakesBytesInPiecesAndStartsAnew) {
  Sha256 hash;
  hash.update(as_bytes("a"));
  hash.update({});
  hash.update(as_bytes("bc"));
  EXPECT_EQ(hash.finish_hex(), sha256_hex(as_bytes("abc")));
  EXPECT_EQ(hash.finish_hex(), sha256_hex({}));
}

}  // namespace
}  // namespace dckpt::hash_test
