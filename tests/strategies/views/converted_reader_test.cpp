#include "strategies/views/converted_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "strategies/tensor_io/read_tensors.h"
#include "strategies/views/rearranged_reader.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"

namespace dckpt::converted_reader_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeReader;
using ::testing::HasSubstr;

// Values of bfloat16 by its definition: the upper half of a float32.
constexpr std::uint16_t kOne = 0x3F80, kHalf = 0x3F00, kOneAndAHalf = 0x3FC0, kMinusZero = 0x8000,
                        kTiny = 0x3B00;  // 2⁻⁹

template <typename T>
std::vector<T> read(const CheckpointReader& reader, std::size_t tensor, const Box& box) {
  const Tensor part = read_box(reader, tensor, box);
  return {part.data<const T>(), part.data<const T>() + part.numel()};
}

std::unique_ptr<CheckpointReader> halves(std::vector<std::uint16_t> values,
                                         const ElementConversion& conversion) {
  auto source = std::make_unique<FakeReader>();
  const Shape shape{static_cast<std::int64_t>(values.size())};
  source->tensor("norm", DType::kBFloat16, shape, values).write();
  return converted_reader(std::move(source), {{0, conversion}});
}

TEST(ConvertedReader, CastsToNearestEvenAndReadsWhatIsWanted) {
  auto source = std::make_unique<FakeReader>();
  constexpr float kStep = 1.0F / 128;  // the step of bfloat16 above 1
  source
      ->tensor<float>("w", DType::kFloat32, {2, 3},
                      {1, 1 + kStep / 2, 1 + kStep, 1 + kStep * 3 / 2, -2, 0.5F},
                      {{{0, 0}, {2, 2}}, {{0, 2}, {2, 1}}})
      .tensor<float>("bias", DType::kFloat32, {2}, {7, 8})
      .write();
  const auto reader = converted_reader(std::move(source), {{0, {.dtype = DType::kBFloat16}}});
  EXPECT_THAT(read<std::uint16_t>(*reader, 0, whole(Shape{2, 3})),
              ElementsAre(kOne, kOne, 0x3F81, 0x3F82, 0xC000, kHalf));
  EXPECT_THAT(read<std::uint16_t>(*reader, 0, {{1, 1}, {1, 2}}), ElementsAre(0xC000, kHalf));
  EXPECT_THAT(read<float>(*reader, 1, whole(Shape{2})), ElementsAre(7, 8));
}

TEST(ConvertedReader, LargeTensorsAreConvertedPieceByPiece) {
  std::vector<std::uint16_t> values(40'000, kHalf);
  values[20'000] = kOne;
  const auto reader = halves(values, {.dtype = DType::kFloat32, .add = 1});
  const std::vector<float> made = read<float>(*reader, 0, {{1}, {39'999}});
  EXPECT_EQ(std::ranges::count(made, 1.5F), 39'998);
  EXPECT_EQ(made[19'999], 2);
}

TEST(ConvertedReader, WhatIsAddedMustComeBack) {
  const auto all = [](const CheckpointReader& reader) {
    return read<std::uint16_t>(reader, 0, whole(reader.metadata().tensors[0].size));
  };
  EXPECT_THAT(all(*halves({kHalf, kOne}, {.dtype = DType::kBFloat16, .add = 1})),
              ElementsAre(kOneAndAHalf, 0x4000));
  const auto message = [&](std::uint16_t value) {
    return error_of([&] {
             all(*halves({kHalf, value}, {.dtype = DType::kBFloat16, .add = 1}));
           })
        .message();
  };
  EXPECT_THAT(message(kTiny), HasSubstr("adds 1 to bfloat16, but 0.001953125 would come back as 0 "
                                        "from bfloat16; let the map cast to a type with more"));
  EXPECT_THAT(message(kMinusZero), HasSubstr("-0 would come back as 0"));
  const auto wide = halves({kTiny}, {.dtype = DType::kFloat32, .add = 1});
  EXPECT_THAT(read<float>(*wide, 0, whole(Shape{1})), ElementsAre(1 + 1.0F / 512));
  EXPECT_THAT(all(*halves({kTiny}, {.dtype = DType::kBFloat16, .add = 1, .rounded = true})),
              ElementsAre(kOne));
}

TEST(ConvertedReader, NothingBecomesInfinite) {
  const auto read_as_half = [](float value, DType dtype) {
    auto source = std::make_unique<FakeReader>();
    source->tensor<float>("w", DType::kFloat32, {2}, {65504, value}).write();
    const auto reader = converted_reader(std::move(source), {{0, {.dtype = dtype}}});
    return read<std::uint16_t>(*reader, 0, whole(Shape{2}));
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(read_as_half(-kInfinity, DType::kFloat16), ElementsAre(0x7BFF, 0xFC00));
  EXPECT_THAT(error_of([&] { read_as_half(65520, DType::kFloat16); }).message(),
              HasSubstr("65520 (of float32) would be infinite in float16"));
  EXPECT_THAT(error_of([&] {
                read_as_half(std::numeric_limits<float>::max(), DType::kBFloat16);
              }).message(),
              HasSubstr("would be infinite in bfloat16"));
}

TEST(ConvertedReader, OnlyFloatsAreConverted) {
  auto source = std::make_unique<FakeReader>();
  source->tensor<std::int32_t>("steps", DType::kInt32, {1}, {3}).write();
  EXPECT_THAT(error_of([&] {
                converted_reader(std::move(source), {{0, {.dtype = DType::kFloat32}}});
              }).message(),
              HasSubstr("the map converts int32 to float32"));
  EXPECT_TRUE(comes_back(DType::kBFloat16, DType::kFloat32));
  EXPECT_FALSE(comes_back(DType::kFloat16, DType::kBFloat16));
  EXPECT_FALSE(comes_back(DType::kBFloat16, DType::kFloat16));
}

}  // namespace
}  // namespace dckpt::converted_reader_test
