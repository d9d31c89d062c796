#include "mapping/state/tensor.h"

#include <gmock/gmock.h>

#include <array>
#include <complex>
#include <memory>
#include <numeric>
#include <type_traits>
#include <utility>

#include "tests/support/expect_error.h"

namespace dckpt::tensor_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;

/// Returns 0, 1, 2, … as int32.
Tensor counting(Shape shape) {
  Tensor tensor = Tensor::empty(DType::kInt32, std::move(shape));
  auto* const data = tensor.data<std::int32_t>();
  std::iota(data, data + tensor.numel(), 0);
  return tensor;
}

std::vector<std::int32_t> values(const Tensor& tensor) {
  const Tensor dense = tensor.contiguous();
  const auto* const data = dense.data<const std::int32_t>();
  return {data, data + dense.numel()};
}

template <typename T>
using DataOf = decltype(std::declval<T>().data());
static_assert(std::is_same_v<DataOf<Tensor&>, std::byte*>);
static_assert(std::is_same_v<DataOf<const Tensor&>, const std::byte*>);
static_assert(std::is_same_v<decltype(std::declval<const Tensor&>().bytes()), ByteView>);
static_assert(std::is_same_v<decltype(std::declval<const Tensor&>().data<float>()), const float*>);

TEST(Tensor, AConstHandleReadsAndSaysSoWhereItWrites) {
  const Tensor tensor = counting({3});
  *reinterpret_cast<std::int32_t*>(tensor.mutable_data()) = 7;
  tensor.mutable_bytes()[sizeof(std::int32_t)] = std::byte{9};
  EXPECT_THAT(values(tensor), ElementsAre(7, 9, 2));
  EXPECT_EQ(tensor.data(), tensor.mutable_data());
}

TEST(Tensor, DefaultIsEmpty) {
  const Tensor tensor;
  EXPECT_EQ(to_string(tensor), "float32 (0,)");
  EXPECT_TRUE(tensor.has_data());
  EXPECT_TRUE(tensor.bytes().empty());
}

TEST(Tensor, OwnerLivesAsLongAsAnyCopy) {
  auto memory = std::make_shared<std::array<float, 6>>();
  std::weak_ptr<const void> watched = memory;
  auto part = std::make_unique<Tensor>(
      Tensor(DType::kFloat32, {2, 3}, {3, 1}, memory->data(), memory).narrow(0, 1, 1));
  memory.reset();
  EXPECT_FALSE(watched.expired());
  part.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(Tensor, AllocationIsAlignedAndCanBeZeroed) {
  const Tensor tensor = Tensor::zeros(DType::kInt32, {5});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data()) % 64, 0u);
  EXPECT_THAT(values(tensor), ElementsAre(0, 0, 0, 0, 0));
}

TEST(Tensor, RefusesShapesThatNoMemoryHolds) {
  EXPECT_EQ(error_of([] { Tensor::empty(DType::kFloat32, {INT64_MAX}); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([] { Tensor::empty(DType::kFloat32, {-1}); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([] { Tensor::meta(DType::kUInt8, Shape(kMaxDims + 1, 1)); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(Tensor::meta(DType::kUInt8, {INT64_MAX}).nbytes(),
            static_cast<std::uint64_t>(INT64_MAX));
}

TEST(Tensor, FromBytesNeedsTheExactSize) {
  const Tensor tensor = counting({2, 2});
  EXPECT_TRUE(equal(Tensor::from_bytes(DType::kInt32, {2, 2}, tensor.bytes()), tensor));
  EXPECT_EQ(error_of([&] { Tensor::from_bytes(DType::kInt32, {5}, tensor.bytes()); }).message(),
            "int32 (5,) needs 20 bytes, got 16");
}

TEST(Tensor, NarrowSharesTheElements) {
  const Tensor tensor = counting({3, 4});
  const Tensor column = tensor.narrow(1, 2, 1);
  EXPECT_THAT(values(column), ElementsAre(2, 6, 10));
  EXPECT_FALSE(column.is_contiguous());
  EXPECT_EQ(column.data(), tensor.data() + 8);
  EXPECT_THAT(values(tensor.narrow(0, 1, 2).narrow(1, 0, 2)), ElementsAre(4, 5, 8, 9));
}

TEST(Tensor, NarrowStaysInside) {
  const Tensor tensor = counting({3, 4});
  EXPECT_EQ(tensor.narrow(0, 3, 0).numel(), 0);
  for (const auto& [axis, start, length] :
       {std::tuple<std::size_t, std::int64_t, std::int64_t>(2, 0, 1),
        {0, 4, 0},
        {0, 2, 2},
        {0, -1, 1},
        {0, 1, INT64_MAX},
        {0, 0, -1}}) {
    EXPECT_EQ(error_of([&, a = axis, s = start, n = length] { tensor.narrow(a, s, n); }).code(),
              ErrorCode::kInvalidArgument);
  }
}

TEST(Tensor, NarrowMovesThePlaceInTheFile) {
  const Tensor tensor = Tensor::in_file(DType::kInt32, {3, 4}, {4, 1}, {"__0_0.distcp", 1000});
  const Tensor part = tensor.narrow(0, 1, 2).narrow(1, 3, 1);
  ASSERT_NE(part.file_range(), nullptr);
  EXPECT_EQ(part.file_range()->offset, 1000u + (4 + 3) * 4);
  EXPECT_EQ(tensor.file_range()->offset, 1000u);
}

TEST(Tensor, ViewKeepsTheOrder) {
  const Tensor tensor = counting({3, 4});
  EXPECT_THAT(values(tensor.view({2, 6}).narrow(0, 1, 1)), ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_EQ(error_of([&] { tensor.view({5}); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { tensor.narrow(1, 0, 2).view({6}); }).code(), ErrorCode::kInvalidArgument)
      << "the elements are not contiguous";
}

TEST(Tensor, ContiguousCopiesOnlyWhatIsStrided) {
  const Tensor tensor = counting({2, 3});
  EXPECT_EQ(tensor.contiguous().data(), tensor.data());
  const Tensor transposed(DType::kInt32, {3, 2}, {1, 3}, tensor.mutable_data(), tensor.owner());
  EXPECT_THAT(values(transposed), ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(Tensor, WithoutElementsThereAreNoBytes) {
  const Tensor described = Tensor::meta(DType::kInt32, {2});
  EXPECT_FALSE(described.has_data());
  EXPECT_EQ(error_of([&] { described.bytes(); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { equal(described, described); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([] {
              Tensor::in_file(DType::kInt32, {2, 2}, {1, 2}, {}).contiguous();
            }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(Tensor::meta(DType::kInt32, {0}).has_data());
}

TEST(Tensor, ElementsAreAccessedByTheirType) {
  Tensor tensor = Tensor::zeros(DType::kFloat32, {2});
  tensor.data<float>()[1] = 1.5F;
  static_assert(std::is_same_v<decltype(tensor.data<const float>()), const float*>);
  EXPECT_EQ(tensor.data<const float>()[1], 1.5F);
  EXPECT_EQ(tensor.narrow(0, 1, 1).data<float>(), tensor.data<float>() + 1);
  EXPECT_EQ(Tensor::zeros(DType::kComplex64, {1}).data<std::complex<float>>()->imag(), 0);
  EXPECT_EQ(*Tensor::zeros(DType::kInt64, {1}).data<long long>(), 0);
  EXPECT_EQ(Tensor::zeros(DType::kBool, {}).data<bool>()[0], false);
}

TEST(Tensor, ElementsWithoutACppTypeAreAccessedByTheirBits) {
  const std::uint16_t one = 0x3F80;
  const Tensor tensor =
      Tensor::from_bytes(DType::kBFloat16, {1}, std::as_bytes(std::span(&one, 1)));
  EXPECT_EQ(*tensor.data<const std::uint16_t>(), one);
  EXPECT_EQ(*Tensor::zeros(DType::kFloat8E5M2, {1}).data<std::uint8_t>(), 0);
  EXPECT_STREQ(
      error_of([&] { tensor.data<float>(); }).what(),
      "the elements of a tensor, bfloat16 (1,), are accessed as float32; their bits can be "
      "accessed as uint16");
}

TEST(Tensor, ElementsAreNotAccessedAsAnotherType) {
  const Tensor tensor = counting({2, 3});
  EXPECT_EQ(error_of([&] { tensor.data<float>(); }).code(), ErrorCode::kMismatch);
  EXPECT_EQ(error_of([&] { tensor.data<const std::uint32_t>(); }).code(), ErrorCode::kMismatch);
  EXPECT_EQ(error_of([] { Tensor::meta(DType::kInt32, {2}).data<int>(); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(Tensor().data<float>(), nullptr);
}

TEST(Tensor, EqualComparesTypeShapeAndBytes) {
  const Tensor tensor = counting({2, 3});
  EXPECT_TRUE(equal(tensor, Tensor::from_bytes(DType::kInt32, {2, 3}, tensor.bytes())));
  EXPECT_FALSE(equal(tensor, tensor.view({3, 2})));
  EXPECT_FALSE(equal(tensor, Tensor::from_bytes(DType::kFloat32, {2, 3}, tensor.bytes())));
  const std::uint32_t nan = 0x7FC00001;
  const Tensor with_nan =
      Tensor::from_bytes(DType::kFloat32, {1}, std::as_bytes(std::span(&nan, 1)));
  EXPECT_TRUE(equal(with_nan, with_nan));
}

TEST(Tensor, StridesMustMatchTheShape) {
  EXPECT_EQ(error_of([] {
              Tensor(DType::kInt32, {2, 3}, {1}, nullptr, nullptr);
            }).code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace dckpt::tensor_test
