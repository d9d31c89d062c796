#include "mapping/geometry/element_stats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "mapping/geometry/cast.h"

namespace dckpt::element_stats_test {
namespace {

template <typename T>
ElementStats stats_of(const std::vector<T>& values, DType dtype) {
  ElementStats stats;
  add_elements(stats, dtype, reinterpret_cast<const std::byte*>(values.data()), values.size());
  return stats;
}

/// The plain definition, in two passes over long doubles.
void expect_plain(const ElementStats& stats, const std::vector<double>& values) {
  long double sum = 0, squares = 0, distances = 0;
  for (const double value : values) sum += value;
  const long double mean = sum / static_cast<long double>(values.size());
  for (const double value : values) {
    squares += static_cast<long double>(value) * value;
    distances += (value - mean) * (value - mean);
  }
  const auto deviation =
      static_cast<double>(std::sqrt(distances / static_cast<long double>(values.size())));
  EXPECT_EQ(stats.finite(), values.size());
  EXPECT_NEAR(stats.mean, static_cast<double>(mean), 1e-12 * deviation);
  EXPECT_NEAR(stats.deviation(), deviation, 1e-9 * deviation);
  EXPECT_NEAR(stats.l2(), static_cast<double>(std::sqrt(squares)), 1e-9 * stats.l2());
  EXPECT_EQ(stats.min, *std::ranges::min_element(values));
  EXPECT_EQ(stats.max, *std::ranges::max_element(values));
}

TEST(ElementStats, EveryFloatingTypeAndEveryLengthIsCountedAsItsDefinitionSays) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.25F, 3);
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                            DType::kFloat8E4M3FN, DType::kFloat8E5M2}) {
    for (const std::size_t count : {1U, 3U, 4U, 7U, 1023U, 1024U, 1025U, 5001U}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(count));
      std::vector<float> floats(count);
      for (float& value : floats) value = normal(random);
      if (count > 1) floats[1] = 0;
      std::vector<std::byte> stored(count * item_size(dtype));
      cast_elements(DType::kFloat32, reinterpret_cast<const std::byte*>(floats.data()), dtype,
                    stored.data(), count);
      cast_elements(dtype, stored.data(), DType::kFloat32,
                    reinterpret_cast<std::byte*>(floats.data()), count);
      ElementStats stats;
      add_elements(stats, dtype, stored.data(), count);
      if (count > 1) expect_plain(stats, {floats.begin(), floats.end()});
      EXPECT_EQ(stats.count, count);
      EXPECT_EQ(stats.zero, static_cast<std::uint64_t>(std::ranges::count(floats, 0.0F)));
    }
  }
}

double deviation_of(const std::vector<double>& values) {
  long double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const long double mean = sum / static_cast<long double>(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  return static_cast<double>(std::sqrt(squares / static_cast<long double>(values.size())));
}

/// The squares of these elements differ in their last digits alone.
TEST(ElementStats, DistancesThatAreSmallComparedWithTheMeanAreExact) {
  std::mt19937_64 random(1);
  for (const double mean : {1e7, 1e8, 1e9, -1e11}) {
    for (const std::size_t count : {5U, 1024U, 5001U}) {
      SCOPED_TRACE(std::to_string(mean) + " " + std::to_string(count));
      std::normal_distribution<double> normal(mean, 2);
      std::vector<double> doubles(count);
      std::ranges::generate(doubles, [&] { return normal(random); });
      const double deviation = deviation_of(doubles);
      EXPECT_NEAR(stats_of(doubles, DType::kFloat64).deviation() / deviation, 1, 1e-5);
      doubles.insert(doubles.begin() + 1, INFINITY);
      ElementStats parts =
          stats_of(std::vector(doubles.begin() + 3, doubles.end()), DType::kFloat64);
      parts.merge(stats_of(std::vector(doubles.begin(), doubles.begin() + 3), DType::kFloat64));
      EXPECT_EQ(parts.infinite, 1U);
      EXPECT_NEAR(parts.deviation() / deviation, 1, 1e-5);
      std::vector<std::int64_t> integers(count);
      std::iota(integers.begin(), integers.end(), static_cast<std::int64_t>(mean));
      EXPECT_NEAR(stats_of(integers, DType::kInt64).deviation() /
                      deviation_of({integers.begin(), integers.end()}),
                  1, 1e-5);
    }
  }
  const std::vector<float> floats{16777216, 16777218, 16777216, 16777220};
  EXPECT_NEAR(stats_of(floats, DType::kFloat32).deviation(), std::sqrt(2.75), 1e-9);
}

TEST(ElementStats, SpecialElementsAreCountedAndLeftOut) {
  const float nan = std::nanf(""), infinity = INFINITY, denormal = 1e-40F;
  for (const std::size_t padding : {0U, 1U, 4U, 2000U}) {
    std::vector<float> values(padding, 2.0F);
    values.insert(values.end(),
                  {nan, 1.0F, -infinity, 0.0F, -0.0F, denormal, infinity, -nan, 3.0F});
    const ElementStats stats = stats_of(values, DType::kFloat32);
    EXPECT_EQ(stats.count, padding + 9);
    EXPECT_EQ(stats.nan, 2U);
    EXPECT_EQ(stats.infinite, 2U);
    EXPECT_EQ(stats.zero, 2U);
    EXPECT_EQ(stats.denormal, 1U);
    EXPECT_EQ(stats.min, 0.0);
    EXPECT_EQ(stats.max, 3.0);
    EXPECT_NEAR(stats.mean,
                (2.0 * static_cast<double>(padding) + 4) / static_cast<double>(padding + 5), 1e-12);
  }
}

/// Squares of these doubles are infinite, or zero.
TEST(ElementStats, DoublesOfAnySizeHaveADeviationAndANorm) {
  struct Case {
    std::string name;
    std::vector<double> values;  ///< multiplied by 2^exponent
    int exponent;
    std::uint64_t denormal = 0;
  };
  const std::vector<Case> cases = {
      {"1e300", {1, 2, 3, -4, 0}, 996},    {"equal ones", {3, 3, 3}, 1000},
      {"tiny", {1, 2, 3, -4, 0}, -996},    {"denormals", {1, 2, 3, -4, 0}, -1040, 4},
      {"usual ones", {1, 2, 3, -4, 0}, 0}, {"several blocks", std::vector<double>(3000, -2), 1000},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    std::vector<double> values;
    for (const double value : one.values) values.push_back(std::ldexp(value, one.exponent));
    const ElementStats plain = stats_of(one.values, DType::kFloat64);
    ElementStats parts =
        stats_of(std::vector<double>(values.begin() + 2, values.end()), DType::kFloat64);
    parts.merge(stats_of(std::vector<double>(values.begin(), values.begin() + 2), DType::kFloat64));
    for (const ElementStats& stats : {stats_of(values, DType::kFloat64), parts}) {
      const auto expect_scaled = [&](double found, double expected) {
        EXPECT_NEAR(std::ldexp(found, -one.exponent), expected, 1e-9 * (1 + std::abs(expected)));
      };
      expect_scaled(stats.mean, plain.mean);
      expect_scaled(stats.deviation(), plain.deviation());
      expect_scaled(stats.l2(), plain.l2());
      EXPECT_NEAR(stats.furthest(), plain.furthest(), 1e-9);
      EXPECT_EQ(stats.min, std::ldexp(plain.min, one.exponent));
      EXPECT_EQ(stats.max, std::ldexp(plain.max, one.exponent));
      EXPECT_EQ(stats.zero, plain.zero);
      EXPECT_EQ(stats.denormal, one.denormal);
    }
  }
  ElementStats mixed = stats_of(std::vector<double>{1e300, 3e300, NAN}, DType::kFloat64);
  mixed.merge(stats_of(std::vector<double>{1.0, 2.0, 1e-300}, DType::kFloat64));
  EXPECT_EQ(mixed.nan, 1U);
  EXPECT_NEAR(mixed.l2() / std::hypot(1e300, 3e300), 1, 1e-12);
}

/// The value of a code by the definition of its fields; NaN and infinity as such.
double value_of(std::uint32_t code, int exponent_bits, int mantissa_bits) {
  const int top = (1 << exponent_bits) - 1, bias = top / 2;
  const int exponent = static_cast<int>(code >> mantissa_bits) & top;
  const auto mantissa = static_cast<double>(code & ((1U << mantissa_bits) - 1));
  const double one = std::ldexp(1.0, mantissa_bits);
  const double sign = (code >> (exponent_bits + mantissa_bits)) != 0 ? -1 : 1;
  if (exponent == top) return mantissa == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(mantissa / one, 1 - bias)
                               : std::ldexp(1 + mantissa / one, exponent - bias));
}

TEST(ElementStats, EveryCodeOfHalvesIsCountedAsItsFieldsSay) {
  for (const auto& [dtype, exponent_bits] :
       {std::pair(DType::kBFloat16, 8), std::pair(DType::kFloat16, 5)}) {
    SCOPED_TRACE(to_string(dtype));
    const int mantissa_bits = 15 - exponent_bits;
    for (const std::size_t step : {1U, 7U, 129U}) {  // special elements in few and in many blocks
      std::vector<std::uint16_t> codes;
      for (std::size_t i = 0; i < 65'536; ++i)
        codes.push_back(static_cast<std::uint16_t>(i * step));
      std::vector<double> finite;
      std::uint64_t nan = 0, denormal = 0;
      for (const std::uint16_t code : codes) {
        const double value = value_of(code, exponent_bits, mantissa_bits);
        nan += std::isnan(value) ? 1 : 0;
        if (std::isfinite(value)) finite.push_back(value);
        denormal += value != 0 && std::abs(value) < std::ldexp(1, 2 - (1 << (exponent_bits - 1)));
      }
      const ElementStats stats = stats_of(codes, dtype);
      expect_plain(stats, finite);
      EXPECT_EQ(stats.nan, nan);
      EXPECT_EQ(stats.infinite, 2U);
      EXPECT_EQ(stats.zero, 2U);
      EXPECT_EQ(stats.denormal, denormal);
    }
  }
}

TEST(ElementStats, FewFiniteElementsAmongManyOthersAreTheirOwnStatistics) {
  for (const std::size_t place : {0U, 5U, 1023U, 2047U}) {
    std::vector<std::uint16_t> codes(2051, 0x7FC0);  // NaN
    codes[place] = 0x3F80;                           // 1
    codes.back() = 0x4040;                           // 3
    const ElementStats stats = stats_of(codes, DType::kBFloat16);
    EXPECT_EQ(stats.finite(), 2U);
    EXPECT_EQ(stats.mean, 2.0);
    EXPECT_EQ(stats.deviation(), 1.0);
    EXPECT_EQ(stats.min, 1.0);
    EXPECT_EQ(stats.max, 3.0);
    EXPECT_EQ(stats.zero + stats.denormal, 0U);
  }
}

TEST(ElementStats, DenormalsAreThoseOfTheStoredType) {
  EXPECT_EQ(stats_of<std::uint16_t>({0x03FF, 0x0400, 0x8001, 0}, DType::kFloat16).denormal, 2U);
  EXPECT_EQ(stats_of<std::uint16_t>({0x007F, 0x0080, 0x8001, 0}, DType::kBFloat16).denormal, 2U);
  EXPECT_EQ(stats_of<std::uint8_t>({0x07, 0x08, 0x81, 0}, DType::kFloat8E4M3FN).denormal, 2U);
  EXPECT_EQ(stats_of<double>({1e-310, 1e-300, 0}, DType::kFloat64).denormal, 1U);
}

TEST(ElementStats, EqualElementsHaveNoDeviation) {
  const ElementStats stats = stats_of(std::vector<float>(5000, 0.1F), DType::kFloat32);
  EXPECT_EQ(stats.mean, static_cast<double>(0.1F));
  EXPECT_EQ(stats.deviation(), 0.0);
  EXPECT_EQ(stats.furthest(), 0.0);
}

TEST(ElementStats, NothingFiniteIsZeroEverywhere) {
  const ElementStats stats = stats_of<float>({NAN, NAN}, DType::kFloat32);
  EXPECT_EQ(stats.finite(), 0U);
  EXPECT_EQ(stats.deviation() + stats.l2() + stats.abs_max() + stats.furthest(), 0.0);
}

TEST(ElementStats, IntegersAndBoolsAreNumbersOthersAreNot) {
  EXPECT_EQ(stats_of<std::int64_t>({-3, 0, 9}, DType::kInt64).mean, 2.0);
  EXPECT_EQ(stats_of<std::uint8_t>({1, 0, 1, 1}, DType::kBool).zero, 1U);
  EXPECT_EQ(stats_of<std::int8_t>({-128, 127}, DType::kInt8).abs_max(), 128.0);
  for (const DType dtype : {DType::kComplex64, DType::kFloat4E2M1FNx2, DType::kQInt8})
    EXPECT_FALSE(has_stats(dtype)) << to_string(dtype);
}

TEST(ElementStats, PartsMakeUpTheWhole) {
  std::vector<double> values(10'000);
  std::iota(values.begin(), values.end(), -300);
  ElementStats whole = stats_of(values, DType::kFloat64), parts;
  for (std::size_t at = 0; at < values.size(); at += 2500)
    parts.merge(
        stats_of(std::vector<double>(values.begin() + static_cast<std::ptrdiff_t>(at),
                                     values.begin() + static_cast<std::ptrdiff_t>(at) + 2500),
                 DType::kFloat64));
  EXPECT_EQ(parts.count, whole.count);
  EXPECT_NEAR(parts.mean, whole.mean, 1e-9);
  EXPECT_NEAR(parts.deviation(), whole.deviation(), 1e-9);
  whole.merge(ElementStats());
  EXPECT_EQ(whole.count, values.size());
}

}  // namespace
}  // namespace dckpt::element_stats_test
