#include "mapping/torch/tensor.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <string>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/state/producer_stream.h"

namespace dckpt {
namespace {

constexpr std::pair<DType, at::ScalarType> kDTypes[] = {
    {DType::kBool, at::ScalarType::Bool},
    {DType::kUInt8, at::ScalarType::Byte},
    {DType::kUInt16, at::ScalarType::UInt16},
    {DType::kUInt32, at::ScalarType::UInt32},
    {DType::kUInt64, at::ScalarType::UInt64},
    {DType::kInt8, at::ScalarType::Char},
    {DType::kInt16, at::ScalarType::Short},
    {DType::kInt32, at::ScalarType::Int},
    {DType::kInt64, at::ScalarType::Long},
    {DType::kFloat16, at::ScalarType::Half},
    {DType::kBFloat16, at::ScalarType::BFloat16},
    {DType::kFloat32, at::ScalarType::Float},
    {DType::kFloat64, at::ScalarType::Double},
    {DType::kComplex32, at::ScalarType::ComplexHalf},
    {DType::kComplex64, at::ScalarType::ComplexFloat},
    {DType::kComplex128, at::ScalarType::ComplexDouble},
    {DType::kFloat8E4M3FN, at::ScalarType::Float8_e4m3fn},
    {DType::kFloat8E4M3FNUZ, at::ScalarType::Float8_e4m3fnuz},
    {DType::kFloat8E5M2, at::ScalarType::Float8_e5m2},
    {DType::kFloat8E5M2FNUZ, at::ScalarType::Float8_e5m2fnuz},
    {DType::kFloat8E8M0FNU, at::ScalarType::Float8_e8m0fnu},
    {DType::kFloat4E2M1FNx2, at::ScalarType::Float4_e2m1fn_x2},
    {DType::kQInt8, at::ScalarType::QInt8},
    {DType::kQUInt8, at::ScalarType::QUInt8},
    {DType::kQInt32, at::ScalarType::QInt32},
};

Device device_from_torch(const at::Tensor& tensor) {
  if (tensor.is_cpu() || tensor.is_meta()) return {};
  if (tensor.is_cuda()) return {Device::Kind::kCuda, static_cast<int>(tensor.get_device())};
  throw_error(ErrorCode::kUnsupported,
              "a tensor on device " + tensor.device().str() +
                  " cannot be saved or loaded; move it to the CPU or to a CUDA device");
}

at::Device device_to_torch(const Tensor& tensor) {
  if (tensor.device().kind == Device::Kind::kCpu) return at::kCPU;
  if (tensor.device().kind == Device::Kind::kCallbacks)
    throw_error(ErrorCode::kUnsupported,
                "a tensor whose elements are reached through callbacks cannot be a torch tensor: " +
                    to_string(tensor));
  return {at::kCUDA, static_cast<at::DeviceIndex>(tensor.device().index)};
}

/// Returns the stream through the interface that every libtorch has, also one without CUDA. Older
/// ones do not tell the stream: then its kernels end first, and the default stream will do.
template <typename Guard>
void* native_stream(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.getStreamNativeHandle(stream); }) {
    return guard.getStreamNativeHandle(stream);
  } else {
    guard.synchronizeStream(stream);
    return nullptr;
  }
}

/// Returns the calling thread's current stream.
void* current_stream(const Device& device) {
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const c10::Device on(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device.index));
  return native_stream(cuda, cuda.getStream(on));
}

at::IntArrayRef as_array_ref(const Shape& shape) {
  return {shape.data(), shape.size()};
}

}  // namespace

std::optional<DType> dtype_from_torch(at::ScalarType type) noexcept {
  for (const auto& [ours, theirs] : kDTypes) {
    if (theirs == type) return ours;
  }
  return std::nullopt;
}

at::ScalarType dtype_to_torch(DType dtype) noexcept {
  for (const auto& [ours, theirs] : kDTypes) {
    if (ours == dtype) return theirs;
  }
  return at::ScalarType::Undefined;
}

Tensor from_torch(const at::Tensor& tensor) {
  if (!tensor.defined())
    throw_error(ErrorCode::kInvalidArgument,
                "an undefined torch tensor holds nothing to save or load");
  if (tensor.layout() != at::kStrided) {
    throw_error(ErrorCode::kUnsupported,
                "only dense torch tensors can be saved or loaded; this one is sparse: "
                "convert it with to_dense()");
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    throw_error(ErrorCode::kInvalidArgument,
                "this torch tensor is a lazy conjugate or negation, its memory holds "
                "other values; call resolve_conj() or resolve_neg() first");
  }
  const auto dtype = dtype_from_torch(tensor.scalar_type());
  if (!dtype)
    throw_error(ErrorCode::kUnsupported,
                std::string("no checkpoint holds tensors of torch's dtype ") +
                    c10::toString(tensor.scalar_type()) + "; give it another one with to()");
  void* const elements = tensor.is_meta() ? nullptr : tensor.mutable_data_ptr();
  Tensor handle(*dtype, Shape(tensor.sizes().begin(), tensor.sizes().end()),
                Shape(tensor.strides().begin(), tensor.strides().end()), elements,
                std::make_shared<const at::Tensor>(tensor), device_from_torch(tensor));
  handle.requires_grad = tensor.requires_grad();
  if (tensor.is_cuda()) set_producer_stream(&current_stream);
  return handle;
}

at::Tensor to_torch(const Tensor& tensor) {
  const at::ScalarType type = dtype_to_torch(tensor.dtype());
  if (type == at::ScalarType::Undefined)
    throw_error(ErrorCode::kUnsupported,
                to_string(tensor) +
                    " cannot become a torch tensor: torch has no such type; load it into "
                    "memory of your own");
  if (c10::isQIntType(type)) {
    throw_error(ErrorCode::kUnsupported,
                to_string(tensor) +
                    " cannot become a torch tensor: it is quantized and its scales are not known");
  }
  const auto sizes = as_array_ref(tensor.shape());
  const auto strides = as_array_ref(tensor.strides());
  at::Tensor result;
  if (tensor.data() == nullptr) {  // without elements, or meta
    const at::Device device = tensor.has_data() ? device_to_torch(tensor) : at::Device(at::kMeta);
    result = at::empty_strided(sizes, strides, at::TensorOptions(type).device(device));
  } else {
    const at::Device device = device_to_torch(tensor);
    result = at::from_blob(
        tensor.mutable_data(), sizes, strides, [owner = tensor.owner()](void*) {},
        at::TensorOptions(type).device(device), device);
  }
  if (tensor.requires_grad) result.set_requires_grad(true);
  return result;
}

}  // namespace dckpt
