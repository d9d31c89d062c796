#include "mapping/state/dlpack.h"

#include <ATen/DLConvertor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "mapping/torch/tensor.h"

namespace dckpt::dlpack_test {
namespace {

const at::ScalarType kTypes[] = {at::kBool,
                                 at::kByte,
                                 at::kUInt16,
                                 at::kUInt32,
                                 at::kUInt64,
                                 at::kChar,
                                 at::kShort,
                                 at::kInt,
                                 at::kLong,
                                 at::kHalf,
                                 at::kBFloat16,
                                 at::kFloat,
                                 at::kDouble,
                                 at::kComplexHalf,
                                 at::kComplexFloat,
                                 at::kComplexDouble,
                                 at::kFloat8_e4m3fn,
                                 at::kFloat8_e5m2,
                                 at::kFloat8_e4m3fnuz,
                                 at::kFloat8_e5m2fnuz,
                                 at::kFloat8_e8m0fnu,
                                 at::kFloat4_e2m1fn_x2};

/// Returns (3, 2), the second and third row of a transposed tensor.
at::Tensor sample(at::ScalarType type) {
  const auto bytes = static_cast<std::int64_t>(c10::elementSize(type)) * 8;
  return at::arange(bytes, at::kByte).view(type).view({2, 4}).t().slice(0, 1, 4);
}

void expect_same(const Tensor& tensor, const at::Tensor& theirs) {
  EXPECT_EQ(tensor.data(), theirs.data_ptr());
  EXPECT_EQ(tensor.dtype(), dtype_from_torch(theirs.scalar_type()));
  EXPECT_EQ(tensor.shape(), Shape(theirs.sizes().begin(), theirs.sizes().end()));
  EXPECT_EQ(tensor.strides(), Shape(theirs.strides().begin(), theirs.strides().end()));
}

TEST(TorchDlpack, EveryElementTypeComesAndGoes) {
  for (const at::ScalarType type : kTypes) {
    SCOPED_TRACE(c10::toString(type));
    const at::Tensor theirs = sample(type);
    const Tensor ours = from_dlpack(at::toDLPackVersioned(theirs));
    expect_same(ours, theirs);
    expect_same(from_dlpack(at::toDLPack(theirs)), theirs);
    const at::Tensor back = at::fromDLPackVersioned(to_dlpack(ours));
    expect_same(ours, back);
    EXPECT_EQ(back.scalar_type(), type);
    expect_same(ours, at::fromDLPack(to_dlpack_unversioned(ours)));
  }
}

}  // namespace
}  // namespace dckpt::dlpack_test
