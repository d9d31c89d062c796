#include "operations/inspect/element.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "mapping/base/format.h"
#include "mapping/geometry/cast.h"

namespace dckpt {
namespace {

template <typename T>
T load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
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
    case DType::kFloat4E2M1FNx2:
    case DType::kFloat6E2M3FNx4:
    case DType::kFloat6E3M2FNx4: return ElementKind::kPacked;
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
    case DType::kFloat6E2M3FNx4:
    case DType::kFloat6E3M2FNx4: return integer(byte | load<std::uint16_t>(at + 1) << 8);
    case DType::kUInt16: return integer(load<std::uint16_t>(at));
    case DType::kUInt32: return integer(load<std::uint32_t>(at));
    case DType::kUInt64: return load<std::uint64_t>(at);
    case DType::kInt8:
    case DType::kQInt8: return integer(load<std::int8_t>(at));
    case DType::kInt16: return integer(load<std::int16_t>(at));
    case DType::kInt32:
    case DType::kQInt32: return integer(load<std::int32_t>(at));
    case DType::kInt64: return integer(load<std::int64_t>(at));
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ: return static_cast<double>(load_float(dtype, at));
    case DType::kFloat64: return load<double>(at);
    case DType::kComplex32:
      return ComplexElement{load_float(DType::kFloat16, at), load_float(DType::kFloat16, at + 2)};
    case DType::kComplex64: return ComplexElement{load<float>(at), load<float>(at + 4)};
    case DType::kComplex128: return ComplexElement{load<double>(at), load<double>(at + 8)};
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
      return str_format("({}, {})", shortest(value.real), shortest(value.imag));
    }
  };
  return std::visit(Visitor{}, element);
}

}  // namespace dckpt
