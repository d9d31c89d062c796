#include "dist_checkpointing/inspect/element.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace dckpt {
namespace {

template <typename T>
T load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double from_bfloat16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// What the bit patterns with the highest exponent, and the negative zero, stand for.
enum class Special { kIeee, kOnlyNan, kNegativeZeroIsNan };

/// A small float of a sign, exponent and mantissa field; every such value is exact in double.
double from_small_float(unsigned bits, int exponent_bits, int mantissa_bits, int bias,
                        Special special) noexcept {
  const unsigned sign = bits >> (exponent_bits + mantissa_bits);
  const unsigned exponent = (bits >> mantissa_bits) & ((1U << exponent_bits) - 1);
  const unsigned mantissa = bits & ((1U << mantissa_bits) - 1);
  const unsigned highest = (1U << exponent_bits) - 1;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const auto with_sign = [&](double value) { return sign != 0 ? -value : value; };
  switch (special) {
    case Special::kIeee:
      if (exponent == highest)
        return mantissa != 0 ? kNan : with_sign(std::numeric_limits<double>::infinity());
      break;
    case Special::kOnlyNan:
      if (exponent == highest && mantissa == (1U << mantissa_bits) - 1) return kNan;
      break;
    case Special::kNegativeZeroIsNan:
      if (sign != 0 && exponent == 0 && mantissa == 0) return kNan;
      break;
  }
  if (exponent == 0) return with_sign(std::ldexp(mantissa, 1 - bias - mantissa_bits));
  return with_sign(std::ldexp(mantissa + (1U << mantissa_bits),
                              static_cast<int>(exponent) - bias - mantissa_bits));
}

double from_half(std::uint16_t bits) noexcept {
  return from_small_float(bits, 5, 10, 15, Special::kIeee);
}

}  // namespace

ElementKind element_kind(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBool: return ElementKind::kBool;
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kQInt8:
    case DType::kQUInt8:
    case DType::kQInt32: return ElementKind::kInteger;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E8M0FNU: return ElementKind::kReal;
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128: return ElementKind::kComplex;
    case DType::kFloat4E2M1FNx2: return ElementKind::kPacked;
  }
  return ElementKind::kPacked;
}

Element load_element(DType dtype, const std::byte* at) noexcept {
  const auto integer = [](std::int64_t value) { return Element(value); };
  const auto byte = std::to_integer<unsigned>(*at);
  switch (dtype) {
    case DType::kBool: return byte != 0;
    case DType::kUInt8:
    case DType::kQUInt8:
    case DType::kFloat4E2M1FNx2: return integer(byte);
    case DType::kUInt16: return integer(load<std::uint16_t>(at));
    case DType::kUInt32: return integer(load<std::uint32_t>(at));
    case DType::kUInt64: return load<std::uint64_t>(at);
    case DType::kInt8:
    case DType::kQInt8: return integer(load<std::int8_t>(at));
    case DType::kInt16: return integer(load<std::int16_t>(at));
    case DType::kInt32:
    case DType::kQInt32: return integer(load<std::int32_t>(at));
    case DType::kInt64: return integer(load<std::int64_t>(at));
    case DType::kFloat16: return from_half(load<std::uint16_t>(at));
    case DType::kBFloat16: return from_bfloat16(load<std::uint16_t>(at));
    case DType::kFloat32: return static_cast<double>(load<float>(at));
    case DType::kFloat64: return load<double>(at);
    case DType::kComplex32:
      return ComplexElement{from_half(load<std::uint16_t>(at)),
                            from_half(load<std::uint16_t>(at + 2))};
    case DType::kComplex64: return ComplexElement{load<float>(at), load<float>(at + 4)};
    case DType::kComplex128: return ComplexElement{load<double>(at), load<double>(at + 8)};
    case DType::kFloat8E4M3FN: return from_small_float(byte, 4, 3, 7, Special::kOnlyNan);
    case DType::kFloat8E4M3FNUZ:
      return from_small_float(byte, 4, 3, 8, Special::kNegativeZeroIsNan);
    case DType::kFloat8E5M2: return from_small_float(byte, 5, 2, 15, Special::kIeee);
    case DType::kFloat8E5M2FNUZ:
      return from_small_float(byte, 5, 2, 16, Special::kNegativeZeroIsNan);
    case DType::kFloat8E8M0FNU:
      return byte == 0xFF ? std::numeric_limits<double>::quiet_NaN()
                          : std::ldexp(1.0, static_cast<int>(byte) - 127);
  }
  return integer(byte);
}

std::string shortest(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

std::string to_string(const Element& element) {
  struct Visitor {
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(std::int64_t value) const { return std::to_string(value); }
    std::string operator()(std::uint64_t value) const { return std::to_string(value); }
    std::string operator()(double value) const { return shortest(value); }
    std::string operator()(const ComplexElement& value) const {
      return "(" + shortest(value.real) + ", " + shortest(value.imag) + ")";
    }
  };
  return std::visit(Visitor{}, element);
}

}  // namespace dckpt
