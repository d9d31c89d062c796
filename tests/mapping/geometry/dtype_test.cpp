#include "mapping/geometry/dtype.h"

#include <gtest/gtest.h>

#include <utility>

#include "mapping/geometry/dtype_of.h"

namespace dckpt::dtype_test {
namespace {

static_assert(dtype_of<bool>() == DType::kBool);
static_assert(dtype_of<unsigned char>() == DType::kUInt8);
static_assert(dtype_of<long long>() == DType::kInt64);
static_assert(dtype_of<std::complex<float>>() == DType::kComplex64);
// With GNU extensions, which users may enable, these are integral types.
static_assert(!ElementType<__int128> && !ElementType<unsigned __int128>);
static_assert(!ElementType<long double> && !ElementType<char*>);

/// Names and sizes in torch 2.11 (torch.dtype.itemsize).
constexpr std::pair<const char*, std::size_t> kTorch[] = {
    {"bool", 1},           {"uint8", 1},
    {"uint16", 2},         {"uint32", 4},
    {"uint64", 8},         {"int8", 1},
    {"int16", 2},          {"int32", 4},
    {"int64", 8},          {"float16", 2},
    {"bfloat16", 2},       {"float32", 4},
    {"float64", 8},        {"complex32", 4},
    {"complex64", 8},      {"complex128", 16},
    {"float8_e4m3fn", 1},  {"float8_e4m3fnuz", 1},
    {"float8_e5m2", 1},    {"float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", 1}, {"float4_e2m1fn_x2", 1},
    {"qint8", 1},          {"quint8", 1},
    {"qint32", 4},
};

TEST(DType, HasTorchsNamesAndSizes) {
  for (const auto& [name, size] : kTorch) {
    const auto dtype = parse_dtype(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(to_string(*dtype), name);
    EXPECT_EQ(item_size(*dtype), size) << name;
    EXPECT_TRUE(is_torch_dtype(*dtype)) << name;
  }
}

TEST(DType, OfSixBitsIsNotTorchs) {
  for (const char* const name : {"float6_e2m3fn_x4", "float6_e3m2fn_x4"}) {
    const auto dtype = parse_dtype(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(to_string(*dtype), name);
    EXPECT_EQ(item_size(*dtype), 3U);
    EXPECT_EQ(packed_values(*dtype), 4);
    EXPECT_FALSE(is_torch_dtype(*dtype));
  }
}

TEST(DType, AcceptsThePrefixAndAliases) {
  EXPECT_EQ(parse_dtype("torch.bfloat16"), DType::kBFloat16);
  EXPECT_EQ(parse_dtype("half"), DType::kFloat16);
  EXPECT_EQ(parse_dtype("torch.long"), DType::kInt64);
}

TEST(DType, RefusesOtherNames) {
  for (const char* const name : {"", "torch.", "Float32", "float3", "torch.torch.float32"})
    EXPECT_EQ(parse_dtype(name), std::nullopt) << name;
}

}  // namespace
}  // namespace dckpt::dtype_test
