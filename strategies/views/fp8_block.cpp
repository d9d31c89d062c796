#include "strategies/views/fp8_block.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "mapping/geometry/cast.h"

namespace dckpt {
namespace {

/// The largest code of a block: 448 where its scale was computed from its largest magnitude, any of
/// these where the scale was then rounded up to a power of two.
constexpr std::array<float, 9> kLargestCodes{448, 416, 384, 352, 320, 288, 256, 240, 224};
constexpr std::size_t kCodesAtOnce = 256;
using Block = std::array<float, kCodesAtOnce>;

const std::byte* bytes(const float* values) {
  return reinterpret_cast<const std::byte*>(values);
}

void encode(std::span<const float> values, float scale, std::byte* codes) {
  Block scaled;
  for (std::size_t i = 0; i < values.size(); ++i) scaled[i] = values[i] / scale;
  cast_elements(DType::kFloat32, bytes(scaled.data()), DType::kFloat8E4M3FN, codes, values.size());
}

void decode(const std::byte* codes, float* values, std::size_t count) {
  cast_elements(DType::kFloat8E4M3FN, codes, DType::kFloat32, reinterpret_cast<std::byte*>(values),
                count);
}

/// Calls visit(first, count) for pieces of a block until it returns false.
template <typename Visit>
bool all_pieces(std::size_t size, const Visit& visit) {
  for (std::size_t first = 0; first < size; first += kCodesAtOnce) {
    if (!visit(first, std::min(kCodesAtOnce, size - first))) return false;
  }
  return true;
}

/// The scales with which codes have certain values.
struct Range {
  double low = 0;
  double high = std::numeric_limits<double>::infinity();

  /// Leaves the scales whose products with `code` are rounded to `value`.
  void narrow(double code, double value, int digits) {
    if (code == 0 && value == 0) return;
    int exponent = 0;
    const bool power = std::frexp(value, &exponent) == 0.5;
    const double half = std::ldexp(0.5, exponent - digits);
    low = std::max(low, (value - (power ? half / 2 : half)) / code);
    high = std::min(high, code == 0 ? 0 : (value + half) / code);
  }
};

int digits_of(DType dtype) {
  return dtype == DType::kFloat32 ? 24 : dtype == DType::kBFloat16 ? 8 : 11;
}

bool come_back(std::span<const float> values, DType dtype, const std::byte* codes, float scale) {
  return all_pieces(values.size(), [&](std::size_t first, std::size_t count) {
    Block products, rounded;
    std::array<std::byte, kCodesAtOnce * sizeof(float)> stored;
    decode(codes + first, products.data(), count);
    for (std::size_t i = 0; i < count; ++i) products[i] *= scale;
    cast_elements(DType::kFloat32, bytes(products.data()), dtype, stored.data(), count);
    cast_elements(dtype, stored.data(), DType::kFloat32,
                  reinterpret_cast<std::byte*>(rounded.data()), count);
    return std::equal(rounded.begin(), rounded.begin() + static_cast<std::ptrdiff_t>(count),
                      values.begin() + static_cast<std::ptrdiff_t>(first));
  });
}

/// Encodes with the scale that makes `largest` of the largest magnitude, and returns a scale with
/// which the values come back; 0 if there is none.
float exact_scale(std::span<const float> values, DType dtype, float first_guess, std::byte* codes) {
  Range range;
  const bool possible = all_pieces(values.size(), [&](std::size_t first, std::size_t count) {
    const auto piece = values.subspan(first, count);
    encode(piece, first_guess, codes + first);
    Block decoded;
    decode(codes + first, decoded.data(), count);
    for (std::size_t i = 0; i < count; ++i)
      range.narrow(std::abs(decoded[i]), std::abs(piece[i]), digits_of(dtype));
    return range.low <= range.high;
  });
  if (!possible) return 0;
  const auto middle = static_cast<float>((range.low + range.high) / 2);
  for (const float scale : {first_guess, middle, std::nextafter(middle, 0.0F),
                            std::nextafter(middle, std::numeric_limits<float>::infinity())}) {
    if (come_back(values, dtype, codes, scale)) return scale;
  }
  return 0;
}

}  // namespace

float quantize_fp8(std::span<const float> values, DType dtype, std::byte* codes) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  // Below, the scale would be subnormal, and quotients inaccurate.
  const bool is_tiny = largest < kLargestCodes.front() * std::numeric_limits<float>::min();
  for (const float code : kLargestCodes) {
    if (is_tiny) break;
    const float scale = exact_scale(values, dtype, largest / code, codes);
    if (scale > 0) return scale;
  }
  const float scale =
      largest == 0 ? 1.0F
                   : std::max(largest / kLargestCodes.front(), std::numeric_limits<float>::min());
  all_pieces(values.size(), [&](std::size_t first, std::size_t count) {
    encode(values.subspan(first, count), scale, codes + first);
    return true;
  });
  return scale;
}

}  // namespace dckpt
