#include "mapping/geometry/element_stats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <type_traits>

#include "mapping/geometry/cast.h"

// A block of elements, which stays in the first cache, is converted to float, or to double for
// types that float does not hold, and then visited once.

namespace dckpt {
namespace {

constexpr std::size_t kBlock = 1024;

template <typename T>
using Bits = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
template <typename T>
constexpr Bits<T> kMagnitude = std::numeric_limits<Bits<T>>::max();  // all bits but the sign
template <typename T>
constexpr Bits<T> kInfinite = std::bit_cast<Bits<T>>(std::numeric_limits<T>::infinity());

/// Several elements, with the operators of one. Compilers do not vectorize sums on their own, since
/// that changes the order of the additions.
template <typename T>
struct Lanes {
  static constexpr std::size_t kCount = 4;
  using Values [[gnu::vector_size(kCount * sizeof(T))]] = T;
  using Words [[gnu::vector_size(kCount * sizeof(T))]] = Bits<T>;
  using Doubles [[gnu::vector_size(kCount * sizeof(double))]] = double;
};

/// Adds the lanes up.
template <typename Vector>
auto total(const Vector& lanes) {
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

/// Returns the statistics of finite elements; empty if others are among them. `count` is a positive
/// multiple of the lanes. `normal` is the smallest normal value of the stored type.
template <typename T>
std::optional<ElementStats> stats_of_finite(const T* block, std::size_t count, T normal) noexcept {
  using Of = Lanes<T>;
  using Values = typename Of::Values;
  using Words = typename Of::Words;
  using Doubles = typename Of::Doubles;
  const Words least = Words{} + std::bit_cast<Bits<T>>(normal);
  Words most{}, zeros{}, small{};
  Values min = Values{} + std::numeric_limits<T>::infinity();
  Values max = -min;
  Doubles sums{}, squares{};
  for (std::size_t i = 0; i < count; i += Of::kCount) {
    Values values;
    Words magnitudes;
    std::memcpy(&values, block + i, sizeof values);
    std::memcpy(&magnitudes, block + i, sizeof magnitudes);
    magnitudes &= kMagnitude<T>;
    most = magnitudes > most ? magnitudes : most;
    zeros += magnitudes == 0;  // true is -1
    small += magnitudes < least;
    min = values < min ? values : min;
    max = values > max ? values : max;
    const Doubles wide = __builtin_convertvector(values, Doubles);
    sums += wide;
    squares += wide * wide;
  }
  ElementStats stats;
  for (std::size_t lane = 0; lane < Of::kCount; ++lane) {
    if (most[lane] >= kInfinite<T>) return std::nullopt;
    stats.min = std::min(stats.min, static_cast<double>(min[lane]));
    stats.max = std::max(stats.max, static_cast<double>(max[lane]));
  }
  stats.count = count;
  stats.zero = static_cast<std::uint64_t>(-total(zeros));
  stats.denormal = static_cast<std::uint64_t>(std::max<Bits<T>>(total(zeros) - total(small), 0));
  stats.mean = stats.min;  // exactly, if all are equal
  if (stats.min == stats.max) return stats;
  stats.mean = total(sums) / static_cast<double>(count);
  stats.squares = std::max(total(squares) - total(sums) * stats.mean, 0.0);
  return stats;
}

/// Moves the finite elements to the front, counts the others, and returns the number of the former.
template <typename T>
std::size_t take_finite(ElementStats& stats, T* block, std::size_t count) noexcept {
  std::size_t finite = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Bits<T> magnitude = std::bit_cast<Bits<T>>(block[i]) & kMagnitude<T>;
    stats.nan += magnitude > kInfinite<T> ? 1 : 0;
    stats.infinite += magnitude == kInfinite<T> ? 1 : 0;
    if (magnitude < kInfinite<T>) block[finite++] = block[i];
  }
  stats.count += count - finite;
  return finite;
}

/// Adds a block, whose elements may be moved.
template <typename T>
void add_block(ElementStats& stats, T* block, std::size_t count, T normal) noexcept {
  std::size_t whole = count / Lanes<T>::kCount * Lanes<T>::kCount;
  auto found = whole > 0 ? stats_of_finite(block, whole, normal) : std::nullopt;
  if (!found) {
    count = take_finite(stats, block, count);
    whole = count / Lanes<T>::kCount * Lanes<T>::kCount;
    if (whole > 0) found = stats_of_finite(block, whole, normal);
  }
  if (found) stats.merge(*found);
  count -= whole;
  count = take_finite(stats, block + whole, count);
  for (std::size_t i = whole; i < whole + count; ++i) {
    const auto value = static_cast<double>(block[i]);
    ElementStats one{.count = 1, .mean = value, .min = value, .max = value};
    one.zero = value == 0 ? 1 : 0;
    one.denormal = value != 0 && std::abs(value) < static_cast<double>(normal) ? 1 : 0;
    stats.merge(one);
  }
}

/// Returns the smallest normal value of a type that float holds.
float smallest_normal(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat16: return 0x1p-14F;
    case DType::kFloat8E4M3FN: return 0x1p-6F;
    case DType::kFloat8E4M3FNUZ: return 0x1p-7F;
    case DType::kFloat8E5M2: return 0x1p-14F;
    case DType::kFloat8E5M2FNUZ: return 0x1p-15F;
    default: return 0x1p-126F;
  }
}

template <typename From>
void add_as_doubles(ElementStats& stats, const std::byte* elements, std::size_t count) noexcept {
  std::array<double, kBlock> block;
  const double normal = std::is_floating_point_v<From> ? std::numeric_limits<double>::min() : 0;
  for (std::size_t done = 0; done < count; done += kBlock) {
    const std::size_t size = std::min(kBlock, count - done);
    for (std::size_t i = 0; i < size; ++i) {
      From value;
      std::memcpy(&value, elements + (done + i) * sizeof(From), sizeof(From));
      block[i] = static_cast<double>(value);
    }
    add_block(stats, block.data(), size, normal);
  }
}

void add_as_floats(ElementStats& stats, DType dtype, const std::byte* elements,
                   std::size_t count) noexcept {
  std::array<float, kBlock> block;
  for (std::size_t done = 0; done < count; done += kBlock) {
    const std::size_t size = std::min(kBlock, count - done);
    cast_elements(dtype, elements + done * item_size(dtype), DType::kFloat32,
                  reinterpret_cast<std::byte*>(block.data()), size);
    add_block(stats, block.data(), size, smallest_normal(dtype));
  }
}

}  // namespace

double ElementStats::deviation() const noexcept {
  return finite() == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite()));
}

double ElementStats::l2() const noexcept {
  return std::sqrt(squares + static_cast<double>(finite()) * mean * mean);
}

double ElementStats::abs_max() const noexcept {
  return finite() == 0 ? 0 : std::max(std::abs(min), std::abs(max));
}

double ElementStats::furthest() const noexcept {
  const double one = deviation();
  return one > 0 ? std::max(max - mean, mean - min) / one : 0;
}

void ElementStats::merge(const ElementStats& other) noexcept {
  const auto mine = static_cast<double>(finite()), its = static_cast<double>(other.finite());
  count += other.count;
  nan += other.nan;
  infinite += other.infinite;
  zero += other.zero;
  denormal += other.denormal;
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  if (its == 0) return;
  // Chan, Golub and LeVeque: "Updating formulae and a pairwise algorithm for computing sample
  // variances" (1979).
  const double distance = other.mean - mean;
  mean += distance * its / (mine + its);
  squares += other.squares + distance * distance * mine * its / (mine + its);
}

bool has_stats(DType dtype) noexcept {
  return can_cast(dtype, DType::kFloat32) || dtype == DType::kBool ||
         can_cast(dtype, DType::kInt64) || dtype == DType::kUInt64;
}

void add_elements(ElementStats& stats, DType dtype, const std::byte* elements,
                  std::size_t count) noexcept {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8: return add_as_doubles<std::uint8_t>(stats, elements, count);
    case DType::kUInt16: return add_as_doubles<std::uint16_t>(stats, elements, count);
    case DType::kUInt32: return add_as_doubles<std::uint32_t>(stats, elements, count);
    case DType::kUInt64: return add_as_doubles<std::uint64_t>(stats, elements, count);
    case DType::kInt8: return add_as_doubles<std::int8_t>(stats, elements, count);
    case DType::kInt16: return add_as_doubles<std::int16_t>(stats, elements, count);
    case DType::kInt32: return add_as_doubles<std::int32_t>(stats, elements, count);
    case DType::kInt64: return add_as_doubles<std::int64_t>(stats, elements, count);
    case DType::kFloat64: return add_as_doubles<double>(stats, elements, count);
    default: return add_as_floats(stats, dtype, elements, count);
  }
}

}  // namespace dckpt
