#include "strategies/views/quantized_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mapping/geometry/cast.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/views/dequantized_reader.h"
#include "strategies/views/fp8_block.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"

namespace dckpt::quantized_reader_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeReader;
using ::testing::HasSubstr;

constexpr std::int64_t kRows = 300, kColumns = 200;

Bytes all_of(const CheckpointReader& reader, std::size_t tensor) {
  const Tensor read =
      read_box(reader, tensor, whole(reader.metadata().tensors[tensor].global_shape()));
  const ByteView bytes = read.bytes();
  return {bytes.begin(), bytes.end()};
}

/// Returns a float8 weight whose blocks have a code of the largest magnitude 448 or, if scales are
/// powers of two, 240, and scales of any size.
std::unique_ptr<CheckpointReader> published(bool powers_of_two) {
  std::vector<std::uint8_t> codes(kRows * kColumns);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const auto code = static_cast<std::uint8_t>(i * 131 % 251 % (powers_of_two ? 0x78 : 0x7F));
    codes[i] = static_cast<std::uint8_t>(code | (i % 3 == 0 ? 0x80 : 0));
  }
  std::vector<float> scales;
  for (int i = 0; i < 6; ++i)
    scales.push_back(powers_of_two ? std::ldexp(1.0F, i - 20)
                                   : 0.00123F / static_cast<float>(i + 1));
  auto source = std::make_unique<FakeReader>();
  source->tensor("w", DType::kFloat8E4M3FN, {kRows, kColumns}, codes)
      .tensor("w_scale_inv", DType::kFloat32, {3, 2}, scales)
      .tensor<float>("norm", DType::kFloat32, {2}, {1, 2})
      .write();
  return source;
}

std::unique_ptr<CheckpointReader> dequantized(bool powers_of_two, DType dtype) {
  return dequantized_reader(published(powers_of_two), {.suffix = "_scale_inv", .dtype = dtype});
}

class PublishedWeights : public ::testing::TestWithParam<std::tuple<bool, DType>> {};
INSTANTIATE_TEST_SUITE_P(Scales, PublishedWeights,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(DType::kFloat32, DType::kBFloat16)));

TEST_P(PublishedWeights, ComeBackWithEqualValues) {
  const auto [powers_of_two, dtype] = GetParam();
  const auto values = dequantized(powers_of_two, dtype);
  const auto quantized = quantized_reader(dequantized(powers_of_two, dtype), {true, false});
  ASSERT_EQ(quantized->metadata().tensors.size(), 3);
  EXPECT_EQ(quantized->metadata().tensors[1].key, "w_scale_inv");
  EXPECT_EQ(quantized->metadata().tensors[1].size, (Shape{3, 2}));
  EXPECT_EQ(all_of(*quantized, 0), all_of(*published(powers_of_two), 0));
  if (dtype == DType::kFloat32) {
    EXPECT_EQ(all_of(*quantized, 1), all_of(*published(powers_of_two), 1));
  }
  const auto again =
      dequantized_reader(quantized_reader(dequantized(powers_of_two, dtype), {true, false}),
                         {.suffix = "_scale_inv", .dtype = dtype});
  EXPECT_EQ(all_of(*again, 0), all_of(*values, 0));
  EXPECT_EQ(all_of(*again, 1), all_of(*values, 1));
}

TEST(QuantizedReader, PiecesOfAnySizeAreThoseOfTheWhole) {
  const auto reader = quantized_reader(dequantized(false, DType::kBFloat16), {true, false});
  const Bytes all = all_of(*reader, 0);
  for (const Box& box :
       {Box{{0, 0}, {300, 1}}, Box{{299, 199}, {1, 1}}, Box{{120, 7}, {20, 150}}}) {
    const Tensor part = read_box(*reader, 0, box, {.threads = 1, .staging = 1000});
    for (std::int64_t i = 0; i < part.numel(); ++i) {
      const std::int64_t row = box.offsets[0] + i / box.sizes[1];
      const std::int64_t column = box.offsets[1] + i % box.sizes[1];
      ASSERT_EQ(part.data()[i], all[static_cast<std::size_t>(row * kColumns + column)]);
    }
  }
}

TEST(QuantizedReader, OtherWeightsUseTheWholeRangeOfCodes) {
  const std::vector<float> values{1, -2, 0.3F, 0.7F, 0.11F, 0};
  std::array<std::byte, 6> codes;
  EXPECT_FLOAT_EQ(quantize_fp8(values, DType::kFloat32, codes.data()), 2.0F / 448);
  std::array<float, 6> decoded;
  cast_elements(DType::kFloat8E4M3FN, codes.data(), DType::kFloat32,
                reinterpret_cast<std::byte*>(decoded.data()), decoded.size());
  EXPECT_THAT(decoded,
              ElementsAre(224, -448, 64, 160, 24, 0));  // 67.2, 156.8 and 24.64 are rounded
  const std::vector<float> zeros(3, 0.0F);
  EXPECT_EQ(quantize_fp8(zeros, DType::kFloat32, codes.data()), 1);
  const std::vector<float> tiny{1e-41F};
  EXPECT_GT(quantize_fp8(tiny, DType::kFloat32, codes.data()), 0);
}

TEST(QuantizedReader, WeightsThatAreNotFiniteAreRefused) {
  auto source = std::make_unique<FakeReader>();
  source->tensor<float>("w", DType::kFloat32, {1, 2}, {1, std::numeric_limits<float>::infinity()})
      .write();
  const auto reader = quantized_reader(std::move(source), {true});
  const CheckpointError error = error_of([&] { all_of(*reader, 0); });
  EXPECT_THAT(error.message(), HasSubstr("infinite"));
  EXPECT_EQ(error.context().key, "w");
}

}  // namespace
}  // namespace dckpt::quantized_reader_test
