#include "strategies/views/low_rank_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "strategies/tensor_io/read_tensors.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"

namespace dckpt::low_rank_reader_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeReader;
using ::testing::HasSubstr;

template <typename T>
std::vector<T> read(const CheckpointReader& reader, std::size_t tensor, const Box& box,
                    const ReadOptions& options = {}) {
  const Tensor part = read_box(reader, tensor, box, options);
  return {part.data<const T>(), part.data<const T>() + part.numel()};
}

std::uint16_t bfloat16(float value) {  // for values that are exact
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

/// Returns x of 2 × 3 in two pieces, and a bias.
std::unique_ptr<FakeReader> model() {
  auto source = std::make_unique<FakeReader>();
  source
      ->tensor<float>("x", DType::kFloat32, {2, 3}, {1, 2, 3, 4, 5, 6},
                      {{{0, 0}, {2, 2}}, {{0, 2}, {2, 1}}})
      .tensor<float>("bias", DType::kFloat32, {2}, {7, 8})
      .write();
  return source;
}

/// Returns left of 2 × 2, right of 2 × 3, their transposes, and a vector.
std::shared_ptr<const CheckpointReader> factors() {
  auto source = std::make_shared<FakeReader>();
  source->tensor<float>("left", DType::kFloat32, {2, 2}, {1, 10, 100, 1000})
      .tensor<float>("right", DType::kFloat32, {2, 3}, {1, 2, 3, 4, 5, 6})
      .tensor<float>("left turned", DType::kFloat32, {2, 2}, {1, 100, 10, 1000})
      .tensor<float>("right turned", DType::kFloat32, {3, 2}, {1, 4, 2, 5, 3, 6})
      .tensor<float>("vector", DType::kFloat32, {2}, {1, 2})
      .write();
  return source;
}

TEST(LowRankReader, AddsTheProductTimesTheScale) {
  const auto reader = low_rank_reader(
      model(), factors(), {{.tensor = 0, .left = LowRankFactor{0}, .right = {1}, .scale = 2}});
  EXPECT_THAT(read<float>(*reader, 0, whole(Shape{2, 3})),
              ElementsAre(1 + 2 * 41, 2 + 2 * 52, 3 + 2 * 63,  //
                          4 + 2 * 4100, 5 + 2 * 5200, 6 + 2 * 6300));
  EXPECT_THAT(read<float>(*reader, 0, {{1, 1}, {1, 2}}), ElementsAre(5 + 2 * 5200, 6 + 2 * 6300));
  EXPECT_THAT(read<float>(*reader, 1, whole(Shape{2})), ElementsAre(7, 8));
}

TEST(LowRankReader, FactorsMayBeStoredTransposed) {
  const auto reader = low_rank_reader(
      model(), factors(),
      {{.tensor = 0, .left = LowRankFactor{2, true}, .right = {3, true}, .scale = 1}});
  EXPECT_THAT(read<float>(*reader, 0, whole(Shape{2, 3})),
              ElementsAre(42, 54, 66, 4104, 5205, 6306));
}

TEST(LowRankReader, AVectorIsAddedToAVector) {
  const auto reader =
      low_rank_reader(model(), factors(), {{.tensor = 1, .right = {4}, .scale = 0.5F}});
  EXPECT_THAT(read<float>(*reader, 1, whole(Shape{2})), ElementsAre(7.5F, 9));
}

TEST(LowRankReader, SumsAreRoundedOnce) {
  auto source = std::make_unique<FakeReader>();
  source->tensor<std::uint16_t>("x", DType::kBFloat16, {1, 2}, {bfloat16(1), bfloat16(256)})
      .write();
  auto parts = std::make_shared<FakeReader>();
  parts->tensor<float>("left", DType::kFloat32, {1, 1}, {1})
      .tensor<float>("right", DType::kFloat32, {1, 2}, {0x1p-8F, 1.0F})
      .write();
  const auto reader = low_rank_reader(std::move(source), parts,
                                      {{.tensor = 0, .left = LowRankFactor{0}, .right = {1}}});
  // 1 + 2⁻⁸ and 257 are halfway between two numbers of eight digits, and round to even.
  EXPECT_THAT(read<std::uint16_t>(*reader, 0, whole(Shape{1, 2})),
              ElementsAre(bfloat16(1), bfloat16(256)));
}

TEST(LowRankReader, Float64KeepsItsDigits) {
  auto source = std::make_unique<FakeReader>();
  source->tensor<double>("x", DType::kFloat64, {1, 1}, {1.0 + 0x1p-40}).write();
  auto parts = std::make_shared<FakeReader>();
  parts->tensor<float>("left", DType::kFloat32, {1, 1}, {1})
      .tensor<float>("right", DType::kFloat32, {1, 1}, {0.5F})
      .write();
  const auto reader = low_rank_reader(std::move(source), parts,
                                      {{.tensor = 0, .left = LowRankFactor{0}, .right = {1}}});
  EXPECT_THAT(read<double>(*reader, 0, whole(Shape{1, 1})), ElementsAre(1.5 + 0x1p-40));
}

TEST(LowRankReader, PiecesOfAnySizeAreThoseOfTheWholeWithinLittleMemory) {
  constexpr std::int64_t kRows = 150, kColumns = 700, kRank = 13;
  const auto values = [](std::int64_t count, int step) {
    std::vector<float> made(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < made.size(); ++i)
      made[i] = static_cast<float>(static_cast<int>(i * 7919 % 251) * step) / 512.0F;
    return made;
  };
  const auto x = values(kRows * kColumns, 3);
  const auto left = values(kRows * kRank, 1);
  const auto right = values(kRank * kColumns, 2);
  const auto open = [&](std::uint64_t memory) {
    auto source = std::make_unique<FakeReader>();
    source
        ->tensor("x", DType::kFloat32, {kRows, kColumns}, x,
                 {{{0, 0}, {kRows, 333}}, {{0, 333}, {kRows, kColumns - 333}}})
        .write();
    auto parts = std::make_shared<FakeReader>();
    parts->tensor("left", DType::kFloat32, {kRows, kRank}, left)
        .tensor("right", DType::kFloat32, {kRank, kColumns}, right)
        .write();
    return low_rank_reader(std::move(source), parts,
                           {{.tensor = 0, .left = LowRankFactor{0}, .right = {1}}}, memory);
  };
  const auto all = read<float>(*open(kDefaultFactorMemory), 0, whole(Shape{kRows, kColumns}));
  for (std::int64_t row = 0; row < kRows; row += 31) {
    for (std::int64_t column = 0; column < kColumns; column += 53) {
      float sum = 0;
      for (std::int64_t k = 0; k < kRank; ++k)
        sum += left[std::size_t(row * kRank + k)] * right[std::size_t(k * kColumns + column)];
      const auto at = static_cast<std::size_t>(row * kColumns + column);
      EXPECT_NEAR(all[at], x[at] + sum, 1e-4F);
    }
  }
  const auto reader = open(1);  // pieces of factors at their minimum size
  EXPECT_EQ(read<float>(*reader, 0, whole(Shape{kRows, kColumns})), all);
  for (const Box& box : {Box{{0, 0}, {150, 1}}, Box{{149, 699}, {1, 1}}, Box{{70, 126}, {3, 400}},
                         Box{{5, 300}, {100, 90}}}) {
    const auto part = read<float>(*reader, 0, box, {.threads = 1, .staging = 1000});
    for (std::size_t i = 0; i < part.size(); ++i) {
      const std::int64_t row = box.offsets[0] + std::int64_t(i) / box.sizes[1];
      const std::int64_t column = box.offsets[1] + std::int64_t(i) % box.sizes[1];
      ASSERT_EQ(part[i], all[std::size_t(row * kColumns + column)]);
    }
  }
}

TEST(LowRankReader, RefusesWhatDoesNotFit) {
  const auto message = [](LowRankTerm term) {
    return error_of([&] { low_rank_reader(model(), factors(), {term}); }).message();
  };
  EXPECT_THAT(message({.tensor = 0, .left = LowRankFactor{1}, .right = {0}}),
              HasSubstr("the product of (2, 3) and (2, 2) is to be added to a tensor of the shape "
                        "(2, 3)"));
  EXPECT_THAT(message({.tensor = 0, .right = {4}}),
              HasSubstr("a tensor of the shape (2,) is to be added to one of the shape (2, 3)"));
  const LowRankTerm term{.tensor = 1, .right = {4}};
  EXPECT_THAT(error_of([&] {
                low_rank_reader(model(), factors(), {term, term});
              }).message(),
              HasSubstr("two products"));
  auto integers = std::make_unique<FakeReader>();
  integers->tensor<std::int64_t>("x", DType::kInt64, {2}, {1, 2}).write();
  EXPECT_THAT(error_of([&] {
                low_rank_reader(std::move(integers), factors(), {{.tensor = 0, .right = {4}}});
              }).message(),
              HasSubstr("nothing can be added to a tensor that is int64"));
}

TEST(LowRankReader, RefusesSumsThatWouldBeInfinite) {
  auto source = std::make_unique<FakeReader>();
  source->tensor<std::uint16_t>("x", DType::kFloat16, {2}, {0, 0}).write();
  auto parts = std::make_shared<FakeReader>();
  parts->tensor<float>("vector", DType::kFloat32, {2}, {1, 70000}).write();
  const auto reader = low_rank_reader(std::move(source), parts, {{.tensor = 0, .right = {0}}});
  const CheckpointError error = error_of([&] { read<std::uint16_t>(*reader, 0, whole(Shape{2})); });
  EXPECT_THAT(error.message(), HasSubstr("a weight is 70000, which would be infinite in float16"));
  EXPECT_EQ(error.context().key, "x");
}

}  // namespace
}  // namespace dckpt::low_rank_reader_test
