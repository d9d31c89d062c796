#include "mapping/geometry/element_stats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "mapping/geometry/cast.h"

// A block of elements, which stays in the first cache, is converted to float, or to double for
// types that float does not hold, and then visited once. bfloat16 is visited as it is stored.

namespace dckpt {
namespace {

constexpr std::size_t kBlock = 1024;
/// If a difference of sums is a smaller share of them than this, too few of its digits are right.
constexpr double kCancelled = 0x1p-16;

template <typename T>
using Bits = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
template <typename T>
constexpr Bits<T> kMagnitude = std::numeric_limits<Bits<T>>::max();  // all bits but the sign
template <typename T>
constexpr Bits<T> kInfinite = std::bit_cast<Bits<T>>(std::numeric_limits<T>::infinity());

constexpr std::size_t kLanes = 8;  // elements that are visited together

/// Several numbers, as wide as a register of every x86-64: GCC keeps sums of wider ones in memory.
template <typename T>
struct Vector {
  static constexpr std::size_t kCount = 16 / sizeof(T);
  using Type [[gnu::vector_size(16)]] = T;
};

/// The result of one pass over elements.
struct Pass {
  std::uint64_t zero = 0;
  std::uint64_t small = 0;  ///< zeros and denormals
  double min = std::numeric_limits<double>::infinity();
  double max = -min;
  double sum = 0;
  double squares = 0;

  /// Returns whether all elements are finite. Sums of huge doubles are not, either.
  bool finite() const noexcept { return std::isfinite(sum); }
  /// Takes copies of an element out, of which at least one remains.
  template <typename T>
  void take_out(T element, std::size_t copies, T normal) noexcept {
    const auto value = static_cast<double>(element);
    zero -= element == 0 ? copies : 0;
    small -= element == 0 || std::abs(element) < normal ? copies : 0;
    sum -= value * static_cast<double>(copies);
    squares -= value * value * static_cast<double>(copies);
  }
  ElementStats stats(std::size_t count) const noexcept {
    ElementStats stats{
        .count = count, .zero = zero, .denormal = small - zero, .min = min, .max = max};
    stats.mean = min;  // exactly, if all are equal
    if (min == max) return stats;
    stats.mean = sum / static_cast<double>(count);
    stats.squares = std::max(squares - sum * stats.mean, 0.0);
    return stats;
  }
};

/// Counts the zeros and denormals of a block by their bits. Its counts fit words of 16 bits.
template <typename Word>
class SmallCounts {
 public:
  using Words = typename Vector<Word>::Type;

  /// `normal` is the smallest normal value; 0 for integers.
  explicit SmallCounts(Word normal) : least_(Words{} + std::max<Word>(normal, 1)) {}

  void add(Words words) {
    words &= std::numeric_limits<Word>::max();  // all bits but the sign
    zeros_ -= words == 0;                       // true is -1
    small_ -= words < least_;
  }
  void put_into(Pass& pass) const {
    for (std::size_t lane = 0; lane < Vector<Word>::kCount; ++lane) {
      pass.zero += static_cast<std::uint64_t>(zeros_[lane]);
      pass.small += static_cast<std::uint64_t>(small_[lane]);
    }
  }

 private:
  Words least_, zeros_{}, small_{};
};

/// Extremes and sums. Compilers do not vectorize sums on their own, since that changes the order of
/// the additions. A float and its square are exact as doubles, so that only the additions round:
/// the sums of a block are off by at most 2^-53 of the sum of absolute values for each of the
/// additions that an element goes through, about 130.
template <typename T>
class Sums {
 public:
  using Values = typename Vector<T>::Type;
  using Group = std::array<Values, kLanes / Vector<T>::kCount>;

  void add(const Group& group) {
    std::array<Doubles, kLanes / 2> wide;
    for (std::size_t i = 0; i < group.size(); ++i) {
      min_ = group[i] < min_ ? group[i] : min_;
      max_ = group[i] > max_ ? group[i] : max_;
      const Wide converted = __builtin_convertvector(group[i], Wide);
      std::memcpy(&wide[i * wide.size() / group.size()], &converted, sizeof converted);
    }
    sums_ += (wide[0] + wide[1]) + (wide[2] + wide[3]);
    squares_ += (wide[0] * wide[0] + wide[1] * wide[1]) + (wide[2] * wide[2] + wide[3] * wide[3]);
  }
  void put_into(Pass& pass) const {
    for (std::size_t lane = 0; lane < Vector<T>::kCount; ++lane) {
      pass.min = std::min(pass.min, static_cast<double>(min_[lane]));
      pass.max = std::max(pass.max, static_cast<double>(max_[lane]));
    }
    pass.sum = sums_[0] + sums_[1];
    pass.squares = squares_[0] + squares_[1];
  }

 private:
  using Doubles = typename Vector<double>::Type;
  using Wide [[gnu::vector_size(Vector<T>::kCount * sizeof(double))]] = double;

  Values min_ = Values{} + std::numeric_limits<T>::infinity();
  Values max_ = Values{} - std::numeric_limits<T>::infinity();
  Doubles sums_{}, squares_{};
};

template <typename To>
To load(const void* at) noexcept {
  To value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// Visits a multiple of kLanes elements. `normal` is the smallest normal value of the stored type,
/// 0 for integers.
template <typename T>
Pass pass_over(const T* block, std::size_t count, T normal) noexcept {
  SmallCounts<Bits<T>> counts(std::bit_cast<Bits<T>>(normal));
  Sums<T> sums;
  for (std::size_t i = 0; i < count; i += kLanes) {
    const auto group = load<typename Sums<T>::Group>(block + i);
    for (const auto& values : group)
      counts.add(std::bit_cast<typename SmallCounts<Bits<T>>::Words>(values));
    sums.add(group);
  }
  Pass pass;
  counts.put_into(pass);
  sums.put_into(pass);
  return pass;
}

/// Does the same with stored elements: their bits are the upper half of a float's, and the order of
/// the additions is free.
Pass pass_over_bfloat16(const std::byte* elements, std::size_t count) noexcept {
  using Halves = SmallCounts<std::int16_t>::Words;
  using Words = SmallCounts<std::int32_t>::Words;
  using Values = Sums<float>::Values;
  constexpr std::int16_t kNormal = 0x0080;
  SmallCounts<std::int16_t> counts(kNormal);
  Sums<float> sums;
  for (std::size_t i = 0; i < count; i += kLanes) {
    const auto halves = load<Halves>(elements + i * sizeof(std::int16_t));
    const auto words = std::bit_cast<Words>(halves);
    counts.add(halves);
    sums.add({std::bit_cast<Values>(words << 16), std::bit_cast<Values>(words & -0x10000)});
  }
  Pass pass;
  counts.put_into(pass);
  sums.put_into(pass);
  return pass;
}

/// Computes mean and squares anew, in two more passes, without `copies` of `copied`.
template <typename T>
void center(ElementStats& stats, std::span<const T> block, T copied, std::size_t copies) noexcept {
  const auto sum_of = [&](auto&& term) {
    double sum = 0;
    for (const T value : block) sum += term(static_cast<double>(value) - stats.mean);
    return sum - static_cast<double>(copies) * term(static_cast<double>(copied) - stats.mean);
  };
  stats.mean += sum_of([](double distance) { return distance; }) / static_cast<double>(stats.count);
  stats.squares = sum_of([](double distance) { return distance * distance; });
}

/// Adds a block of at least one element, with room for a multiple of kLanes. Elements that are not
/// finite, and those that are missing at the end, are replaced by another one, whose copies are
/// then taken out of the result.
template <typename T>
void add_block(ElementStats& stats, T* block, std::size_t count, T normal) noexcept {
  const std::size_t padded = (count + kLanes - 1) / kLanes * kLanes;
  T copied = block[0];
  std::fill(block + count, block + padded, copied);
  Pass pass = pass_over(block, padded, normal);
  Bits<T> nan = 0, infinite = 0;
  if (!pass.finite()) {
    const auto magnitude = [](T value) { return std::bit_cast<Bits<T>>(value) & kMagnitude<T>; };
    const T* const first = std::find_if(block, block + count,
                                        [&](T value) { return magnitude(value) < kInfinite<T>; });
    copied = first == block + count ? 0 : *first;
    for (std::size_t i = 0; i < count; ++i) {
      nan += magnitude(block[i]) > kInfinite<T> ? 1 : 0;
      infinite += magnitude(block[i]) == kInfinite<T> ? 1 : 0;
      block[i] = magnitude(block[i]) < kInfinite<T> ? block[i] : copied;
    }
    std::fill(block + count, block + padded, copied);
    pass = pass_over(block, padded, normal);
  }
  const std::size_t special = static_cast<std::size_t>(nan) + static_cast<std::size_t>(infinite);
  pass.take_out(copied, padded - count + special, normal);
  stats.count += special;
  stats.nan += static_cast<std::uint64_t>(nan);
  stats.infinite += static_cast<std::uint64_t>(infinite);
  if (count == special) return;
  ElementStats of_block = pass.stats(count - special);
  if (of_block.min < of_block.max && of_block.squares < kCancelled * pass.squares)
    center(of_block, std::span<const T>(block, count), copied, special);
  stats.merge(of_block);
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

/// Doubles beyond 2^kExtreme, and below 2^-kExtreme, have squares that are no normal doubles.
constexpr int kExtreme = 480;

int ilogb_of(double value) noexcept {
  return value == 0 ? 0 : std::ilogb(value);
}

/// Adds a block of doubles whose largest has this exponent, from a copy that is divided by it.
void add_extreme_block(ElementStats& stats, double* block, std::size_t count,
                       int exponent) noexcept {
  std::uint64_t zero = 0, denormal = 0;
  double min = std::numeric_limits<double>::infinity(), max = -min;
  for (std::size_t i = 0; i < count; ++i) {
    const double value = block[i];
    zero += value == 0 ? 1 : 0;
    denormal += std::fpclassify(value) == FP_SUBNORMAL ? 1 : 0;
    if (std::isfinite(value)) {
      min = std::min(min, value);
      max = std::max(max, value);
    }
    block[i] = std::ldexp(value, -exponent);
  }
  ElementStats found;
  add_block(found, block, count, 0.0);
  found.zero = zero;
  found.denormal = denormal;
  found.min = min;
  found.max = max;
  found.mean = std::ldexp(found.mean, exponent);
  found.exponent = exponent;
  stats.merge(found);
}

/// Returns the exponent of the block's largest element; 0 if all squares are normal doubles.
int extreme_exponent(const double* block, std::size_t count) noexcept {
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double magnitude = std::abs(block[i]);
    if (magnitude > largest && std::isfinite(magnitude)) largest = magnitude;
  }
  const int exponent = ilogb_of(largest);
  return std::abs(exponent) < kExtreme ? 0 : exponent;
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
    const int exponent = std::is_same_v<From, double> ? extreme_exponent(block.data(), size) : 0;
    if (exponent == 0)
      add_block(stats, block.data(), size, normal);
    else
      add_extreme_block(stats, block.data(), size, exponent);
  }
}

void add_as_floats(ElementStats& stats, DType dtype, const std::byte* elements,
                   std::size_t count) noexcept {
  std::array<float, kBlock> block;
  for (std::size_t done = 0; done < count; done += kBlock) {
    const std::size_t size = std::min(kBlock, count - done);
    const std::byte* const from = elements + done * item_size(dtype);
    if (dtype == DType::kBFloat16 && size == kBlock) {
      const Pass pass = pass_over_bfloat16(from, size);
      if (pass.finite()) {
        stats.merge(pass.stats(size));
        continue;
      }
    }
    cast_elements(dtype, from, DType::kFloat32, reinterpret_cast<std::byte*>(block.data()), size);
    add_block(stats, block.data(), size, smallest_normal(dtype));
  }
}

}  // namespace

double ElementStats::deviation() const noexcept {
  return finite() == 0 ? 0
                       : std::ldexp(std::sqrt(squares / static_cast<double>(finite())), exponent);
}

double ElementStats::l2() const noexcept {
  const auto count_of_mean = static_cast<double>(finite());
  if (exponent == 0 && std::abs(ilogb_of(mean)) < kExtreme)
    return std::sqrt(squares + count_of_mean * mean * mean);
  return std::hypot(std::ldexp(std::sqrt(squares), exponent), std::sqrt(count_of_mean) * mean);
}

double ElementStats::abs_max() const noexcept {
  return finite() == 0 ? 0 : std::max(std::abs(min), std::abs(max));
}

double ElementStats::furthest() const noexcept {
  const double one = deviation();
  if (!std::isfinite(one)) return one;  // doubles whose squares are none
  // Halves, since a distance of two doubles need not be one.
  return one > 0 ? std::max(max / 2 - mean / 2, mean / 2 - min / 2) / (one / 2) : 0;
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
  const auto is_null = [](const ElementStats& stats) {
    return stats.mean == 0 && stats.squares == 0;
  };
  const int common = is_null(*this)   ? other.exponent
                     : is_null(other) ? exponent
                                      : std::max(exponent, other.exponent);
  const auto scaled = [common](double value, int power) {
    return common == 0 && power == 0 ? value : std::ldexp(value, power);
  };
  const double distance = scaled(other.mean, -common) - scaled(mean, -common);
  mean += scaled(distance * its / (mine + its), common);
  squares = scaled(squares, 2 * (exponent - common)) +
            scaled(other.squares, 2 * (other.exponent - common)) +
            distance * distance * mine * its / (mine + its);
  exponent = common;
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
