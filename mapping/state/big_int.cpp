#include <algorithm>
#include <array>
#include <cstdint>

#include "mapping/state/value.h"

namespace dckpt {
namespace {

/// Longer numbers are written as hexadecimal: decimal takes quadratic time. Python refuses decimal
/// at about the same length (4300 digits).
constexpr std::size_t kMaxDecimalBytes = 1785;

/// Returns the absolute value, little-endian.
Bytes magnitude(const Bytes& number, bool negative) {
  Bytes result = number;
  if (!negative) return result;
  bool carry = true;
  for (std::byte& byte : result) {
    byte = ~byte;
    if (carry) {
      byte = static_cast<std::byte>(std::to_integer<unsigned>(byte) + 1);
      carry = byte == std::byte{0};
    }
  }
  if (carry) result.push_back(std::byte{1});
  return result;
}

std::string hexadecimal(const Bytes& value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string digits;
  for (const std::byte byte : value) {
    digits += kDigits[std::to_integer<unsigned>(byte) & 15];
    digits += kDigits[std::to_integer<unsigned>(byte) >> 4];
  }
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  std::reverse(digits.begin(), digits.end());
  return "0x" + digits;
}

std::string decimal(Bytes value) {
  constexpr std::uint64_t kChunk = 1'000'000'000;
  std::string digits;
  while (!value.empty()) {
    std::uint64_t remainder = 0;
    for (std::size_t i = value.size(); i-- > 0;) {
      const std::uint64_t part = remainder << 8 | std::to_integer<std::uint64_t>(value[i]);
      value[i] = static_cast<std::byte>(part / kChunk);
      remainder = part % kChunk;
    }
    while (!value.empty() && value.back() == std::byte{0}) value.pop_back();
    for (int i = 0; i < 9; ++i, remainder /= 10) digits += static_cast<char>('0' + remainder % 10);
  }
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  std::reverse(digits.begin(), digits.end());
  return digits.empty() ? "0" : digits;
}

}  // namespace

std::string BigInt::to_decimal() const {
  const bool negative = !bytes.empty() && (bytes.back() & std::byte{0x80}) != std::byte{0};
  const Bytes value = magnitude(bytes, negative);
  return (negative ? "-" : "") +
         (value.size() > kMaxDecimalBytes ? hexadecimal(value) : decimal(value));
}

}  // namespace dckpt
