#include "mapping/base/hash.h"

#if DCKPT_HAVE_ISAL
#include <isa-l/crc.h>
#else
#include <zlib.h>
#endif

namespace dckpt {

std::uint32_t crc32(ByteView bytes, std::uint32_t previous) noexcept {
#if DCKPT_HAVE_ISAL
  return ::crc32_gzip_refl(previous, reinterpret_cast<const unsigned char*>(bytes.data()),
                           bytes.size());
#else
  if (bytes.empty()) return previous;  // zlib would start over if the pointer is null
  return static_cast<std::uint32_t>(
      ::crc32_z(previous, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
#endif
}

namespace {

// The functions below compute with polynomials over GF(2) modulo CRC-32's, as zip stores them: the
// highest bit is the coefficient of x^0.
constexpr std::uint32_t kPolynomial = 0xedb88320;
constexpr std::uint32_t kOne = std::uint32_t{1} << 31;
constexpr std::uint32_t kX8 = std::uint32_t{1} << 23;

constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) noexcept {
  std::uint32_t product = 0;
  for (std::uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

}  // namespace

std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second,
                            std::uint64_t second_length) noexcept {
  std::uint32_t shift =
      kOne;  // becomes x^(8·length), the effect of this many more bytes on the CRC of those before
  for (std::uint32_t power = kX8; second_length != 0;
       second_length >>= 1, power = multiply(power, power)) {
    if ((second_length & 1) != 0) shift = multiply(shift, power);
  }
  return multiply(shift, first) ^ second;
}

std::string to_hex(ByteView bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    text.push_back(kDigits[std::to_integer<unsigned>(byte) >> 4]);
    text.push_back(kDigits[std::to_integer<unsigned>(byte) & 15]);
  }
  return text;
}

std::string sha256_hex(ByteView bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish_hex();
}

}  // namespace dckpt
