#include "mapping/geometry/cast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/hash.h"

namespace dckpt::cast_test {
namespace {

using ::testing::ElementsAre;

struct Recorded {
  const char* from;
  const char* to;
  const char* digest;  ///< digest of torch 2.11's casts of samples(); see
                       ///< tests/interop/test_casts.py
};

constexpr Recorded kTorch[] = {
    {"float8_e4m3fn", "float8_e4m3fnuz", "73accd98c766f9ee"},
    {"float8_e4m3fn", "float8_e5m2", "4a3609e4d5677179"},
    {"float8_e4m3fn", "float8_e5m2fnuz", "a1415b9291a7291e"},
    {"float8_e4m3fn", "float16", "b999a67714da7548"},
    {"float8_e4m3fn", "bfloat16", "9a1b8d4827e6a232"},
    {"float8_e4m3fn", "float32", "d27b5c87f38cdee0"},
    {"float8_e4m3fn", "float64", "0bf8dc50604dfdd8"},
    {"float8_e4m3fnuz", "float8_e4m3fn", "089003354dac69fc"},
    {"float8_e4m3fnuz", "float8_e5m2", "a8a67d0baee0e8e5"},
    {"float8_e4m3fnuz", "float8_e5m2fnuz", "95fbaf8bc3e01fcf"},
    {"float8_e4m3fnuz", "float16", "2a806e269e3180e0"},
    {"float8_e4m3fnuz", "bfloat16", "e1d91fa720ec2a5b"},
    {"float8_e4m3fnuz", "float32", "c7a91bf8519005cd"},
    {"float8_e4m3fnuz", "float64", "0928ba040bf54180"},
    {"float8_e5m2", "float8_e4m3fn", "826f0b067150f0bb"},
    {"float8_e5m2", "float8_e4m3fnuz", "1ec16a8ea7b1ea81"},
    {"float8_e5m2", "float8_e5m2fnuz", "1e8098857d18a771"},
    {"float8_e5m2", "float16", "8a093d3edee0afc1"},
    {"float8_e5m2", "bfloat16", "7ee37be99bb4ec6e"},
    {"float8_e5m2", "float32", "9e0e2cbd7f92c7c3"},
    {"float8_e5m2", "float64", "af8edffd1239b9d6"},
    {"float8_e5m2fnuz", "float8_e4m3fn", "284039a6fe781125"},
    {"float8_e5m2fnuz", "float8_e4m3fnuz", "06603ada94eb95dd"},
    {"float8_e5m2fnuz", "float8_e5m2", "cf10b1ac5ae0a3d7"},
    {"float8_e5m2fnuz", "float16", "c6b871dce17f03b0"},
    {"float8_e5m2fnuz", "bfloat16", "5337438908a38eb9"},
    {"float8_e5m2fnuz", "float32", "f438678bd713871c"},
    {"float8_e5m2fnuz", "float64", "b844a9555c30ad46"},
    {"float16", "float8_e4m3fn", "681d7250d6e6016b"},
    {"float16", "float8_e4m3fnuz", "310c97474939cb07"},
    {"float16", "float8_e5m2", "b1800d23c4d3a113"},
    {"float16", "float8_e5m2fnuz", "b32ce182de25546a"},
    {"float16", "bfloat16", "bacd1afba4be2bc6"},
    {"float16", "float32", "f189cda6f7903260"},
    {"float16", "float64", "9d9045d5e2da2e9e"},
    {"bfloat16", "float8_e4m3fn", "403dfba4129d832b"},
    {"bfloat16", "float8_e4m3fnuz", "ca990265e6e0d1cd"},
    {"bfloat16", "float8_e5m2", "3bc7b52cec17e9d0"},
    {"bfloat16", "float8_e5m2fnuz", "6089984a7be248c8"},
    {"bfloat16", "float16", "4387e50b63a74abb"},
    {"bfloat16", "float32", "559266fa7a26f10e"},
    {"bfloat16", "float64", "3da3ab4bf93b5767"},
    {"float32", "float8_e4m3fn", "a12881cc09bab557"},
    {"float32", "float8_e4m3fnuz", "93114eebb2d80672"},
    {"float32", "float8_e5m2", "6337f1d710f08ece"},
    {"float32", "float8_e5m2fnuz", "2385e9b3825aa0a0"},
    {"float32", "float16", "3899f409490d7598"},
    {"float32", "bfloat16", "6faff941a11cac4e"},
    {"float32", "float64", "238ff44ddd06047b"},
    {"float64", "float8_e4m3fn", "cdf81c5474df8c8c"},
    {"float64", "float8_e4m3fnuz", "8daa996342ee5c12"},
    {"float64", "float8_e5m2", "1902dea17d701c86"},
    {"float64", "float8_e5m2fnuz", "1b6d11a7cd9e67fb"},
    {"float64", "float16", "9a7e07005a23546f"},
    {"float64", "bfloat16", "8d9afb932d0d9f48"},
    {"float64", "float32", "c0da2a6a906e4f63"},
};

template <typename Word>
void append_all(Bytes& bytes, const std::vector<std::uint64_t>& low) {
  for (std::uint64_t high = 0; high < 65536; ++high) {
    for (const std::uint64_t bits : low)
      append_le(bytes, static_cast<Word>(high << (8 * sizeof(Word) - 16) | bits));
  }
}

/// Returns the elements that the Python function of the same name makes.
Bytes samples(DType dtype) {
  Bytes bytes;
  switch (item_size(dtype)) {
    case 1:
      for (int code = 0; code < 256; ++code) bytes.push_back(static_cast<std::byte>(code));
      break;
    case 2: append_all<std::uint16_t>(bytes, {0}); break;
    case 4:
      append_all<std::uint32_t>(
          bytes, {0, 1, 0x0FFF, 0x1000, 0x1001, 0x2000, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF});
      break;
    default:
      append_all<std::uint64_t>(
          bytes, {0, 1, 0x0FFFFFFF, 0x10000000, 0x10000001, 0x1000000000, 0x800000000001});
  }
  return bytes;
}

Bytes cast(DType from, const Bytes& source, DType to) {
  const std::size_t count = source.size() / item_size(from);
  Bytes result(count * item_size(to));
  cast_elements(from, source.data(), to, result.data(), count);
  return result;
}

/// Returns the digest with each NaN replaced by ones.
std::string digest(DType dtype, Bytes bytes) {
  const std::size_t size = item_size(dtype);
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    if (std::isnan(load_float(dtype, &bytes[at]))) std::memset(&bytes[at], 0xFF, size);
  }
  return sha256_hex(bytes).substr(0, 16);
}

TEST(Cast, FloatingTypesBecomeWhatTorchMakesOfThem) {
  for (const Recorded& recorded : kTorch) {
    const DType from = parse_dtype(recorded.from).value();
    const DType to = parse_dtype(recorded.to).value();
    EXPECT_TRUE(can_cast(from, to));
    EXPECT_EQ(digest(to, cast(from, samples(from), to)), recorded.digest)
        << recorded.from << " to " << recorded.to;
  }
}

template <typename From, typename To>
std::vector<To> cast_values(DType from, const std::vector<From>& values, DType to) {
  std::vector<To> result(values.size() * item_size(to) / sizeof(To) * sizeof(From) /
                         item_size(from));
  cast_elements(from, reinterpret_cast<const std::byte*>(values.data()), to,
                reinterpret_cast<std::byte*>(result.data()),
                values.size() * sizeof(From) / item_size(from));
  return result;
}

TEST(Cast, ComplexPartsAreCastLikeFloats) {
  const std::vector<double> values{1.0, -0.5, 1e300, 1.0 / 3};
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_THAT((cast_values<double, float>(DType::kComplex128, values, DType::kComplex64)),
              ElementsAre(1.0F, -0.5F, kInf, 1.0F / 3));
  EXPECT_THAT(
      (cast_values<float, std::uint16_t>(DType::kComplex64, {1.0F, -0.5F}, DType::kComplex32)),
      ElementsAre(0x3C00, 0xB800));
}

TEST(Cast, IntegersKeepTheirValues) {
  EXPECT_THAT(
      (cast_values<std::int32_t, std::int64_t>(DType::kInt32, {-1, INT32_MIN, 7}, DType::kInt64)),
      ElementsAre(-1, INT32_MIN, 7));
  EXPECT_THAT((cast_values<std::uint8_t, std::int16_t>(DType::kUInt8, {0, 255}, DType::kInt16)),
              ElementsAre(0, 255));
}

TEST(Cast, NothingElseIsCast) {
  using enum DType;
  for (const auto& [from, to] : {std::pair{kInt64, kInt32},
                                 {kInt8, kUInt64},
                                 {kUInt64, kInt64},
                                 {kUInt8, kInt8},
                                 {kFloat32, kInt64},
                                 {kInt8, kFloat32},
                                 {kBool, kInt8},
                                 {kInt8, kBool},
                                 {kFloat32, kComplex64},
                                 {kComplex64, kFloat32},
                                 {kFloat8E8M0FNU, kFloat32},
                                 {kFloat4E2M1FNx2, kUInt8},
                                 {kQInt8, kInt8}}) {
    EXPECT_FALSE(can_cast(from, to)) << to_string(from) << " to " << to_string(to);
  }
  EXPECT_TRUE(can_cast(kQInt8, kQInt8)) << "bytes are copied";
}

TEST(Cast, AnyStridesOnBothSides) {
  const std::vector<float> source{0, 1, 2, 3, 4, 5};  // (2, 3), row-major
  std::vector<double> target(12, -1.0);
  strided_cast(Shape{2, 3}, DType::kFloat32, reinterpret_cast<const std::byte*>(source.data()),
               {0, Shape{3, 1}}, DType::kFloat64, reinterpret_cast<std::byte*>(target.data()),
               {1, Shape{1, 4}});  // transposed, with gaps
  EXPECT_THAT(target, ElementsAre(-1, 0, 3, -1, -1, 1, 4, -1, -1, 2, 5, -1));
}

}  // namespace
}  // namespace dckpt::cast_test
