#include "mapping/base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace dckpt::utf8_test {
namespace {

std::string encoded(std::uint32_t code_point) {
  const auto tail = [&](int shift) {
    return static_cast<char>(0x80 | ((code_point >> shift) & 0x3F));
  };
  const auto head = [&](std::uint32_t mark, int shift) {
    return static_cast<char>(mark | code_point >> shift);
  };
  if (code_point < 0x80) return {head(0, 0)};
  if (code_point < 0x800) return {head(0xC0, 6), tail(0)};
  if (code_point < 0x10000) return {head(0xE0, 12), tail(6), tail(0)};
  return {head(0xF0, 18), tail(12), tail(6), tail(0)};
}

TEST(Utf8, DecodesWhatItEncodes) {
  for (std::uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    const std::string text = encoded(code_point) + "a";
    const auto [length, decoded] = decode_utf8(text, Surrogates::kPass);
    ASSERT_EQ(length, text.size() - 1);
    ASSERT_EQ(decoded, code_point);
    const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
    ASSERT_EQ(decode_utf8(text, Surrogates::kRefuse).length, surrogate ? 0 : length);
  }
}

TEST(Utf8, HasOneFormOfACodePoint) {
  for (const char* const text : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf",
                                 "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(decode_utf8(text, Surrogates::kPass).length, 0u);
    EXPECT_FALSE(is_utf8("a longer text " + std::string(text), Surrogates::kPass));
  }
}

TEST(Utf8, EndsWithItsText) {
  EXPECT_EQ(decode_utf8("", Surrogates::kPass).length, 0u);
  const std::string text = encoded(0x1F600);
  for (std::size_t size = 1; size < text.size(); ++size)
    EXPECT_EQ(decode_utf8(text.substr(0, size), Surrogates::kPass).length, 0u);
}

TEST(Utf8, PassesSurrogatesIfToldTo) {
  const std::string text = "12345678" + encoded(0xDCFF);
  EXPECT_TRUE(is_utf8(text, Surrogates::kPass));
  EXPECT_FALSE(is_utf8(text, Surrogates::kRefuse));
}

TEST(Utf8, BecomesLatin1IfItsCharactersAreThere) {
  EXPECT_EQ(encode_latin1("a" + encoded(0xFF) + encoded(0x80)), to_bytes("a\xFF\x80"));
  EXPECT_EQ(encode_latin1(""), Bytes());
  EXPECT_EQ(encode_latin1("a" + encoded(0x100)), std::nullopt);
  EXPECT_EQ(encode_latin1("a\xFF"), std::nullopt) << "not UTF-8";
}

}  // namespace
}  // namespace dckpt::utf8_test
