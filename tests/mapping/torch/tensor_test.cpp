#include "mapping/torch/tensor.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gmock/gmock.h>

#include <cstddef>
#include <string>

#include "mapping/base/error.h"
#include "mapping/state/producer_stream.h"

namespace dckpt::tensor_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Replaces torch's CUDA part, which a CPU-only libtorch lacks: stream 1 is current on device 0,
/// stream 2 on device 1.
struct TwoGpus final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {type(), 0}; }
  void setDevice(c10::Device /*device*/) const override {}
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, device.index() + 1);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return &streams[static_cast<std::size_t>(stream.id())];
  }
  static inline int streams[3];
};
C10_REGISTER_GUARD_IMPL(CUDA, TwoGpus);

template <typename Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const CheckpointError& error) {
    return error.message();
  }
  return "nothing was thrown";
}

TEST(TorchTensorTest, SharesTheElementsBothWays) {
  const at::Tensor theirs = at::zeros({2, 3}, at::kFloat);
  const Tensor ours = from_torch(theirs);
  EXPECT_EQ(ours.data(), theirs.data_ptr());
  const at::Tensor back = to_torch(ours);
  back[1][2] = 7;
  EXPECT_EQ(theirs[1][2].item<float>(), 7);
}

TEST(TorchTensorTest, SavesOfTensorsInCudaMemoryAskTorchForItsCurrentStream) {
  EXPECT_EQ(producer_stream(), nullptr);
  from_torch(at::zeros({4}));
  EXPECT_EQ(producer_stream(), nullptr);
  std::byte memory[16];
  const Tensor made(DType::kFloat32, {4}, {1}, memory, nullptr, {Device::Kind::kCuda, 1});
  const Tensor ours = from_torch(to_torch(made));
  EXPECT_EQ(ours.device(), made.device());
  ASSERT_NE(producer_stream(), nullptr);
  for (const int gpu : {0, 1})
    EXPECT_EQ(producer_stream()({Device::Kind::kCuda, gpu}), &TwoGpus::streams[gpu + 1]);
  set_producer_stream(nullptr);
}

TEST(TorchTensorTest, KeepsStridesAndOffsetOfAView) {
  const at::Tensor base = at::arange(24, at::kLong).view({4, 6});
  const at::Tensor view = base.t().slice(0, 1, 5);
  const Tensor ours = from_torch(view);
  EXPECT_THAT(ours.shape(), ElementsAre(4, 4));
  EXPECT_THAT(ours.strides(), ElementsAre(1, 6));
  EXPECT_EQ(ours.data(), view.data_ptr());
  EXPECT_TRUE(at::equal(to_torch(ours), view));
  EXPECT_TRUE(at::equal(to_torch(ours.contiguous()), view));
}

TEST(TorchTensorTest, TheHandleKeepsTheTorchTensorAlive) {
  Tensor ours;
  c10::weak_intrusive_ptr<c10::TensorImpl> watch =
      c10::weak_intrusive_ptr<c10::TensorImpl>(at::zeros({1}).getIntrusivePtr());
  {
    const at::Tensor theirs = at::arange(5, at::kInt);
    watch = c10::weak_intrusive_ptr<c10::TensorImpl>(theirs.getIntrusivePtr());
    ours = from_torch(theirs);
  }
  EXPECT_FALSE(watch.expired());
  EXPECT_TRUE(at::equal(to_torch(ours), at::arange(5, at::kInt)));
  ours = Tensor();
  EXPECT_TRUE(watch.expired());
}

TEST(TorchTensorTest, TheTorchTensorKeepsTheOwnerAlive) {
  auto memory = std::make_shared<std::vector<float>>(4, 1.5F);
  const std::weak_ptr<std::vector<float>> watch = memory;
  at::Tensor theirs = to_torch(Tensor(DType::kFloat32, Shape{4}, Shape{1}, memory->data(), memory));
  memory.reset();
  EXPECT_EQ(theirs.sum().item<float>(), 6.0F);
  EXPECT_FALSE(watch.expired());
  theirs = at::Tensor();
  EXPECT_TRUE(watch.expired());
}

TEST(TorchTensorTest, EveryDTypeHasTheSameNameAndSizeOnBothSides) {
  for (int i = 0; i <= static_cast<int>(DType::kQInt32); ++i) {
    const auto dtype = static_cast<DType>(i);
    const at::ScalarType type = dtype_to_torch(dtype);
    SCOPED_TRACE(to_string(dtype));
    EXPECT_EQ(type != at::ScalarType::Undefined, is_torch_dtype(dtype));
    if (!is_torch_dtype(dtype)) continue;
    EXPECT_EQ(dtype_from_torch(type), dtype);
    EXPECT_EQ(c10::elementSize(type), item_size(dtype));
    const auto [name, legacy_name] = c10::getDtypeNames(type);
    EXPECT_EQ(name, to_string(dtype));
  }
}

TEST(TorchTensorTest, TensorsWithoutAxesOrElementsPassThrough) {
  for (const at::Tensor& theirs : {at::zeros({}, at::kDouble), at::zeros({0}, at::kBool),
                                   at::zeros({3, 0, 2}, at::kBFloat16)}) {
    const at::Tensor back = to_torch(from_torch(theirs));
    EXPECT_EQ(back.sizes(), theirs.sizes());
    EXPECT_EQ(back.scalar_type(), theirs.scalar_type());
    EXPECT_EQ(back.device(), theirs.device());
  }
}

TEST(TorchTensorTest, MetaTensorsAreDescribedTensors) {
  const Tensor ours = from_torch(at::empty({2, 5}, at::TensorOptions(at::kHalf).device(at::kMeta)));
  EXPECT_FALSE(ours.has_data());
  EXPECT_THAT(ours.shape(), ElementsAre(2, 5));
  EXPECT_TRUE(to_torch(ours).is_meta());
  EXPECT_TRUE(to_torch(Tensor::meta(DType::kInt8, Shape{3})).is_meta());
}

TEST(TorchTensorTest, RequiresGradIsKept) {
  const at::Tensor theirs = at::zeros({2}).set_requires_grad(true);
  EXPECT_TRUE(from_torch(theirs).requires_grad);
  EXPECT_TRUE(to_torch(from_torch(theirs)).requires_grad());
}

TEST(TorchTensorTest, RefusesWhatHasNoPlainElements) {
  EXPECT_THAT(message_of([] { from_torch(at::Tensor()); }), HasSubstr("undefined"));
  EXPECT_THAT(message_of([] {
                from_torch(at::zeros({2, 2}).to_sparse());
              }),
              HasSubstr("to_dense()"));
  EXPECT_THAT(message_of([] { from_torch(at::zeros({2}, at::kComplexFloat).conj()); }),
              HasSubstr("resolve_conj()"));
  EXPECT_THAT(message_of([] { from_torch(at::empty({2}, at::ScalarType::Bits8)); }),
              HasSubstr("Bits8"));
  EXPECT_THAT(message_of([] { to_torch(Tensor::zeros(DType::kQInt8, Shape{2})); }),
              HasSubstr("quantized"));
}

}  // namespace
}  // namespace dckpt::tensor_test
