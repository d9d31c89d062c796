// Every float of at most 32 bits is exact in float32, and torch goes through float32 too: a
// conversion decodes a block to floats and encodes these. The small types differ in their fields
// and in the use of their highest codes, which is all that `Format` says. Their bits are moved as
// integers, so that modes of the processor (flushing denormals) change nothing; only float64 goes
// through its instructions.

#include "mapping/geometry/cast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace dckpt {
namespace {

constexpr int kFloatMantissa = 23;
constexpr int kFloatBias = 127;
constexpr std::uint32_t kFloatInfinity = 0x7F800000;

/// A float type of sign, exponent and mantissa. `kLargest` is the code of the largest finite value;
/// codes above it are special.
struct Half {
  using Word = std::uint16_t;
  static constexpr int kExponent = 5, kMantissa = 10, kBias = 15;
  static constexpr std::uint32_t kLargest = 0x7BFF, kInfinity = 0x7C00, kNan = 0x7E00;
  static constexpr bool kSignedZero = true;
};
struct BFloat16 {
  using Word = std::uint16_t;
  static constexpr int kExponent = 8, kMantissa = 7, kBias = kFloatBias;
  static constexpr std::uint32_t kNan = 0x7FC0;  // its other special values are those of float32
};
struct E4M3FN {  // no infinity
  using Word = std::uint8_t;
  static constexpr int kExponent = 4, kMantissa = 3, kBias = 7;
  static constexpr std::uint32_t kLargest = 0x7E, kInfinity = 0x7F, kNan = 0x7F;
  static constexpr bool kSignedZero = true;
};
struct E5M2 {
  using Word = std::uint8_t;
  static constexpr int kExponent = 5, kMantissa = 2, kBias = 15;
  static constexpr std::uint32_t kLargest = 0x7B, kInfinity = 0x7C, kNan = 0x7F;
  static constexpr bool kSignedZero = true;
};
/// The code of the negative zero is the only NaN, and there is no infinity.
struct E4M3FNUZ {
  using Word = std::uint8_t;
  static constexpr int kExponent = 4, kMantissa = 3, kBias = 8;
  static constexpr std::uint32_t kLargest = 0x7F, kInfinity = 0x80, kNan = 0x80;
  static constexpr bool kSignedZero = false;
};
struct E5M2FNUZ {
  using Word = std::uint8_t;
  static constexpr int kExponent = 5, kMantissa = 2, kBias = 16;
  static constexpr std::uint32_t kLargest = 0x7F, kInfinity = 0x80, kNan = 0x80;
  static constexpr bool kSignedZero = false;
};

template <typename Format>
constexpr float decode(std::uint32_t code) noexcept {
  constexpr int kBits = Format::kExponent + Format::kMantissa;
  const std::uint32_t sign = code >> kBits << 31;
  const std::uint32_t magnitude = code & ((1U << kBits) - 1);
  if constexpr (Format::kBias == kFloatBias) {
    return std::bit_cast<float>(sign | magnitude << (kFloatMantissa - Format::kMantissa));
  } else {
    if (magnitude > Format::kLargest || (!Format::kSignedZero && code == Format::kNan)) {
      const bool infinite = magnitude == Format::kInfinity && Format::kInfinity != Format::kNan;
      return std::bit_cast<float>(sign | (infinite ? kFloatInfinity : 0x7FC00000));
    }
    const std::uint32_t exponent = magnitude >> Format::kMantissa;
    if (exponent == 0) {
      constexpr auto kUnit =
          static_cast<std::uint32_t>(kFloatBias + 1 - Format::kBias - Format::kMantissa)
          << kFloatMantissa;
      const float value = static_cast<float>(magnitude) * std::bit_cast<float>(kUnit);
      return sign != 0 ? -value : value;
    }
    return std::bit_cast<float>(
        sign | ((magnitude << (kFloatMantissa - Format::kMantissa)) +
                (static_cast<std::uint32_t>(kFloatBias - Format::kBias) << kFloatMantissa)));
  }
}

template <typename Format>
std::uint32_t encode(float value) noexcept {
  constexpr int kBits = Format::kExponent + Format::kMantissa;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 31 << kBits;
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > kFloatInfinity) return sign | Format::kNan;
  if (magnitude == kFloatInfinity) return sign | Format::kInfinity;
  const auto exponent = std::max(static_cast<int>(magnitude >> kFloatMantissa), 1);
  const std::uint32_t mantissa = magnitude < (1U << kFloatMantissa)
                                     ? magnitude
                                     : (magnitude & 0x7FFFFF) | (1U << kFloatMantissa);
  const int above = exponent - kFloatBias + Format::kBias - 1;  // above the smallest normal one
  // Below it the mantissa loses one more bit each time; from 25 on none is left.
  const int shift = std::min(kFloatMantissa - Format::kMantissa + std::max(-above, 0), 25);
  const std::uint32_t rounded =
      (mantissa + (1U << (shift - 1)) - 1 + ((mantissa >> shift) & 1)) >> shift;
  // The leading bit of a normal mantissa, or a carry, adds one to the exponent's field.
  const std::uint32_t code =
      (static_cast<std::uint32_t>(std::max(above, 0)) << Format::kMantissa) + rounded;
  if (code > Format::kLargest) return sign | Format::kInfinity;
  return code == 0 && !Format::kSignedZero ? 0 : sign | code;
}

template <typename T>
T load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <typename T>
void store(std::byte* at, T value) noexcept {
  std::memcpy(at, &value, sizeof value);
}

/// The value of each code of an 8-bit type.
template <typename Format>
constexpr std::array<float, 256> kDecoded = [] {
  std::array<float, 256> floats{};
  for (std::uint32_t code = 0; code < floats.size(); ++code) floats[code] = decode<Format>(code);
  return floats;
}();

template <typename Format>
void decode_all(const std::byte* source, float* into, std::size_t count) noexcept {
  using Word = typename Format::Word;
  for (std::size_t i = 0; i < count; ++i) {
    const Word code = load<Word>(source + i * sizeof(Word));
    if constexpr (sizeof(Word) == 1)
      into[i] = kDecoded<Format>[code];
    else
      into[i] = decode<Format>(code);
  }
}
template <typename Format>
void encode_all(const float* from, std::byte* destination, std::size_t count) noexcept {
  using Word = typename Format::Word;
  for (std::size_t i = 0; i < count; ++i)
    store(destination + i * sizeof(Word), static_cast<Word>(encode<Format>(from[i])));
}
/// The common case, in operations that compilers vectorize.
template <>
void encode_all<BFloat16>(const float* from, std::byte* destination, std::size_t count) noexcept {
  constexpr int kLost = 16;
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> kLost) & 1)) >> kLost;
    const std::uint32_t nan = (bits >> 31 << 15) | BFloat16::kNan;
    store(destination + i * sizeof(std::uint16_t),
          static_cast<std::uint16_t>((bits & 0x7FFFFFFF) > kFloatInfinity ? nan : rounded));
  }
}
template <>
void decode_all<double>(const std::byte* source, float* into, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    into[i] = static_cast<float>(load<double>(source + i * sizeof(double)));
}
template <>
void encode_all<double>(const float* from, std::byte* destination, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    store(destination + i * sizeof(double), static_cast<double>(from[i]));
}
template <>
void decode_all<float>(const std::byte* source, float* into, std::size_t count) noexcept {
  std::memcpy(into, source, count * sizeof(float));
}
template <>
void encode_all<float>(const float* from, std::byte* destination, std::size_t count) noexcept {
  std::memcpy(destination, from, count * sizeof(float));
}

struct FloatCodec {
  void (*decode)(const std::byte* source, float* into, std::size_t count) noexcept = nullptr;
  void (*encode)(const float* from, std::byte* destination, std::size_t count) noexcept = nullptr;
};

template <typename Format>
constexpr FloatCodec kCodec{decode_all<Format>, encode_all<Format>};

/// Returns null functions for anything but a real floating type.
FloatCodec float_codec(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat16: return kCodec<Half>;
    case DType::kBFloat16: return kCodec<BFloat16>;
    case DType::kFloat32: return kCodec<float>;
    case DType::kFloat64: return kCodec<double>;
    case DType::kFloat8E4M3FN: return kCodec<E4M3FN>;
    case DType::kFloat8E4M3FNUZ: return kCodec<E4M3FNUZ>;
    case DType::kFloat8E5M2: return kCodec<E5M2>;
    case DType::kFloat8E5M2FNUZ: return kCodec<E5M2FNUZ>;
    default: return {};
  }
}

bool is_float(DType dtype) noexcept {
  return float_codec(dtype).decode != nullptr;
}

/// Returns the type of the real and the imaginary part; the type itself if it is not complex.
DType part_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::kComplex32: return DType::kFloat16;
    case DType::kComplex64: return DType::kFloat32;
    case DType::kComplex128: return DType::kFloat64;
    default: return dtype;
  }
}

bool is_complex(DType dtype) noexcept {
  return part_of(dtype) != dtype;
}

/// Calls visit(T()) with the C++ type of an integer type; false for other types.
template <typename Visit>
bool visit_integer(DType dtype, Visit&& visit) noexcept {
  switch (dtype) {
    case DType::kUInt8: visit(std::uint8_t()); return true;
    case DType::kUInt16: visit(std::uint16_t()); return true;
    case DType::kUInt32: visit(std::uint32_t()); return true;
    case DType::kUInt64: visit(std::uint64_t()); return true;
    case DType::kInt8: visit(std::int8_t()); return true;
    case DType::kInt16: visit(std::int16_t()); return true;
    case DType::kInt32: visit(std::int32_t()); return true;
    case DType::kInt64: visit(std::int64_t()); return true;
    default: return false;
  }
}

template <typename From, typename To>
constexpr bool holds_all() {
  if (std::is_signed_v<From> && !std::is_signed_v<To>) return false;
  return std::numeric_limits<From>::digits <= std::numeric_limits<To>::digits;
}

void cast_floats(DType from, const std::byte* source, DType to, std::byte* destination,
                 std::size_t count) noexcept {
  std::array<float, 512> block;
  const FloatCodec in = float_codec(from);
  const FloatCodec out = float_codec(to);
  for (std::size_t done = 0; done < count; done += block.size()) {
    const std::size_t size = std::min(block.size(), count - done);
    in.decode(source + done * item_size(from), block.data(), size);
    out.encode(block.data(), destination + done * item_size(to), size);
  }
}

template <typename From, typename To>
void widen(const std::byte* source, std::byte* destination, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    store(destination + i * sizeof(To), static_cast<To>(load<From>(source + i * sizeof(From))));
}

}  // namespace

bool can_cast(DType from, DType to) noexcept {
  if (from == to || (is_float(from) && is_float(to)) || (is_complex(from) && is_complex(to)))
    return true;
  bool holds = false;
  visit_integer(from, [&]<typename From>(From) {
    visit_integer(to, [&]<typename To>(To) { holds = holds_all<From, To>(); });
  });
  return holds;
}

void cast_elements(DType from, const std::byte* source, DType to, std::byte* destination,
                   std::size_t count) noexcept {
  if (from == to) {
    if (count > 0) std::memcpy(destination, source, count * item_size(from));
  } else if (is_complex(from)) {
    cast_floats(part_of(from), source, part_of(to), destination, 2 * count);
  } else if (is_float(from)) {
    cast_floats(from, source, to, destination, count);
  } else {
    visit_integer(from, [&]<typename From>(From) {
      visit_integer(to, [&]<typename To>(To) { widen<From, To>(source, destination, count); });
    });
  }
}

void strided_cast(ShapeView sizes, DType from, const std::byte* source,
                  const StridedView& source_view, DType to, std::byte* destination,
                  const StridedView& destination_view) {
  const RunPlan plan = plan_runs(sizes, source_view, destination_view);
  const auto source_item = static_cast<std::int64_t>(item_size(from));
  const auto destination_item = static_cast<std::int64_t>(item_size(to));
  for_each_run(plan, [&](std::int64_t first, std::int64_t target) {
    cast_elements(from, source + first * source_item, to, destination + target * destination_item,
                  static_cast<std::size_t>(plan.run));
  });
}

float load_float(DType dtype, const std::byte* element) noexcept {
  float value = 0;
  float_codec(dtype).decode(element, &value, 1);
  return value;
}

std::size_t first_too_large(DType from, const std::byte* source, DType to, const std::byte* cast,
                            std::size_t count) noexcept {
  if (to == DType::kFloat64) return count;  // holds all values, and floats do not hold its own
  const auto is_infinite = [&](std::size_t i) {
    const std::byte* const element = source + i * item_size(from);
    return from == DType::kFloat64 ? std::isinf(load<double>(element))
                                   : std::isinf(load_float(from, element));
  };
  std::array<float, 512> block;
  for (std::size_t done = 0; done < count; done += block.size()) {
    const std::size_t size = std::min(block.size(), count - done);
    float_codec(to).decode(cast + done * item_size(to), block.data(), size);
    for (std::size_t i = 0; i < size; ++i) {
      if (std::isinf(block[i]) && !is_infinite(done + i)) return done + i;
    }
  }
  return count;
}

}  // namespace dckpt
