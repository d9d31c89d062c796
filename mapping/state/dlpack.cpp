// The structures below are DLPack's binary interface, version 1.x
// (https://dmlc.github.io/dlpack/latest/c_api.html).

#include "mapping/state/dlpack.h"

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"

extern "C" {

struct DLPackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};

struct DLDevice {
  std::int32_t device_type;
  std::int32_t device_id;
};

struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};
}

namespace dckpt {
namespace {

constexpr DLPackVersion kVersion{1, 0};
constexpr std::uint64_t kReadOnly = 1;
constexpr std::uint64_t kPaddedSubBytes = 4;  // an element of less than a byte takes a whole one

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

struct ElementCode {
  DType dtype;
  DLDataType dlpack;
};
constexpr std::array kElementCodes{
    ElementCode{DType::kBool, {6, 8, 1}},           ElementCode{DType::kUInt8, {1, 8, 1}},
    ElementCode{DType::kUInt16, {1, 16, 1}},        ElementCode{DType::kUInt32, {1, 32, 1}},
    ElementCode{DType::kUInt64, {1, 64, 1}},        ElementCode{DType::kInt8, {0, 8, 1}},
    ElementCode{DType::kInt16, {0, 16, 1}},         ElementCode{DType::kInt32, {0, 32, 1}},
    ElementCode{DType::kInt64, {0, 64, 1}},         ElementCode{DType::kFloat16, {2, 16, 1}},
    ElementCode{DType::kBFloat16, {4, 16, 1}},      ElementCode{DType::kFloat32, {2, 32, 1}},
    ElementCode{DType::kFloat64, {2, 64, 1}},       ElementCode{DType::kComplex32, {5, 32, 1}},
    ElementCode{DType::kComplex64, {5, 64, 1}},     ElementCode{DType::kComplex128, {5, 128, 1}},
    ElementCode{DType::kFloat8E4M3FN, {10, 8, 1}},  ElementCode{DType::kFloat8E4M3FNUZ, {11, 8, 1}},
    ElementCode{DType::kFloat8E5M2, {12, 8, 1}},    ElementCode{DType::kFloat8E5M2FNUZ, {13, 8, 1}},
    ElementCode{DType::kFloat8E8M0FNU, {14, 8, 1}}, ElementCode{DType::kFloat4E2M1FNx2, {17, 4, 2}},
};

[[noreturn]] void invalid(const std::string& found) {
  throw_error(ErrorCode::kInvalidArgument, "cannot import a DLPack tensor: " + found);
}

[[noreturn]] void unsupported(const std::string& found) {
  throw_error(ErrorCode::kUnsupported, "cannot import a DLPack tensor: " + found);
}

DType imported_dtype(DLDataType type) {
  for (const ElementCode& known : kElementCodes) {
    if (known.dlpack.code == type.code && known.dlpack.bits == type.bits &&
        known.dlpack.lanes == type.lanes)
      return known.dtype;
  }
  unsupported(str_format("no checkpoint holds its elements (type code {}, {} bits, {} lanes)",
                         type.code, type.bits, type.lanes));
}

Device imported_device(DLDevice device) {
  switch (device.device_type) {
    case kCpu:
    case kCudaHost: return {};
    case kCuda:
    case kCudaManaged:
      if (device.device_id < 0) invalid(str_format("its GPU has the number {}", device.device_id));
      return {Device::Kind::kCuda, device.device_id};
    default:
      unsupported(
          str_format("its device (type {}) is neither a CPU nor CUDA; copy it to the CPU "
                     "first",
                     device.device_type));
  }
}

Shape imported_shape(const DLTensor& tensor) {
  if (tensor.ndim < 0 || static_cast<std::size_t>(tensor.ndim) > kMaxDims)
    invalid(str_format("it has {} axes; expected 0 to {}", tensor.ndim, kMaxDims));
  if (tensor.ndim == 0) return {};
  if (tensor.shape == nullptr) invalid("it has axes but no shape");
  Shape shape(tensor.shape, tensor.shape + tensor.ndim);
  if (!checked_numel(shape))
    invalid(
        str_format("its shape {} is negative or larger than the address space", to_string(shape)));
  return shape;
}

Shape imported_strides(const DLTensor& tensor, const Shape& shape) {
  if (tensor.strides == nullptr || shape.empty()) return row_major_strides(shape);
  return {tensor.strides, tensor.strides + tensor.ndim};
}

/// Checks that every element has an address.
void check_extent(const Shape& shape, const Shape& strides, DType dtype) {
  std::optional<std::int64_t> last = 0;
  for (std::size_t axis = 0; axis < shape.size() && last; ++axis) {
    if (strides[axis] < 0)
      invalid(str_format("its strides {} are negative; copy it first", to_string(strides)));
    const auto reach = checked_mul(shape[axis] - 1, strides[axis]);
    last = reach ? checked_add(*last, *reach) : std::nullopt;
  }
  if (last) last = checked_add(*last, std::int64_t{1});
  if (!last || !checked_mul(*last, static_cast<std::int64_t>(item_size(dtype))))
    invalid(str_format("its shape {} with the strides {} exceeds the address space",
                       to_string(shape), to_string(strides)));
}

/// Returns a tensor without an owner.
Tensor described(const DLTensor& tensor) {
  const DType dtype = imported_dtype(tensor.dtype);
  const Device device = imported_device(tensor.device);
  Shape shape = imported_shape(tensor);
  Shape strides = imported_strides(tensor, shape);
  if (numel(shape) > 0) {
    check_extent(shape, strides, dtype);
    if (tensor.data == nullptr) invalid("it has elements but no memory");
  }
  void* const data =
      tensor.data == nullptr ? nullptr : static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  return {dtype, std::move(shape), std::move(strides), data, nullptr, device};
}

template <typename Managed>
struct Taken {
  Taken() = default;
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  ~Taken() {
    if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
  }
  Managed* managed = nullptr;
};

/// The deleter of an owner whose elements are only read, which identifies it: all tensors that
/// share elements share the owner.
struct SaveOnlyOwner {
  void operator()(const void*) noexcept { owner.reset(); }
  std::shared_ptr<const void> owner;
};

/// Takes over `managed` as the last step: if there is no memory for the handle, the caller still
/// owns it.
template <typename Managed>
Tensor taken(Managed* managed, DlpackUse use) {
  const Tensor tensor = described(managed->dl_tensor);
  const auto owner = std::make_shared<Taken<Managed>>();
  const std::shared_ptr<const void> known =
      use == DlpackUse::kSave ? std::shared_ptr<const void>(owner.get(), SaveOnlyOwner{owner})
                              : owner;
  Tensor handle(tensor.dtype(), tensor.shape(), tensor.strides(), tensor.mutable_data(), known,
                tensor.device());
  owner->managed = managed;
  return handle;
}

/// The data to which an exported description refers.
template <typename Managed>
struct Exported {
  Tensor tensor;
  Shape shape;
  Shape strides;
  Managed managed{};
};

DLDataType exported_type(const Tensor& tensor) {
  for (const ElementCode& known : kElementCodes)
    if (known.dtype == tensor.dtype()) return known.dlpack;
  throw_error(ErrorCode::kUnsupported, "cannot export {} as DLPack: DLPack has no such type",
              to_string(tensor));
}

template <typename Managed>
Managed* exported(const Tensor& tensor) {
  if (!tensor.has_data())
    throw_error(ErrorCode::kInvalidArgument,
                "cannot export {} as DLPack: it is only described and has no "
                "elements",
                to_string(tensor));
  if (tensor.device().kind == Device::Kind::kCallbacks)
    throw_error(ErrorCode::kUnsupported,
                "cannot export {} as DLPack: its elements are not in memory, but reached through "
                "callbacks",
                to_string(tensor));
  const DLDataType type = exported_type(tensor);
  auto content = std::make_unique<Exported<Managed>>(
      Exported<Managed>{tensor, tensor.shape(), tensor.strides()});
  const Device device = tensor.device();
  content->managed.dl_tensor = {
      .data = tensor.mutable_data(),
      .device = {device.kind == Device::Kind::kCuda ? kCuda : kCpu, device.index},
      .ndim = static_cast<std::int32_t>(tensor.dim()),
      .dtype = type,
      .shape = content->shape.data(),
      .strides = content->strides.data(),
      .byte_offset = 0};
  content->managed.manager_ctx = content.get();
  content->managed.deleter = [](Managed* self) {
    delete static_cast<Exported<Managed>*>(self->manager_ctx);
  };
  return &content.release()->managed;
}

}  // namespace

Tensor from_dlpack(DLManagedTensorVersioned* managed, DlpackUse use) {
  if (managed == nullptr) invalid("the pointer is null");
  if (managed->version.major != kVersion.major) {
    unsupported(str_format("it has version {}.{}; expected {}.x", managed->version.major,
                           managed->version.minor, kVersion.major));
  }
  if (use == DlpackUse::kLoad && (managed->flags & kReadOnly) != 0)
    invalid("it is read-only; a tensor that is only saved is imported with DlpackUse::kSave");
  if (managed->dl_tensor.dtype.bits < 8 && (managed->flags & kPaddedSubBytes) != 0)
    unsupported("its elements of less than a byte are padded");
  return taken(managed, use);
}

Tensor from_dlpack(DLManagedTensor* managed) {
  if (managed == nullptr) invalid("the pointer is null");
  return taken(managed, DlpackUse::kLoad);
}

bool is_save_only(const Tensor& tensor) noexcept {
  return std::get_deleter<SaveOnlyOwner>(tensor.owner()) != nullptr;
}

DLManagedTensorVersioned* to_dlpack(const Tensor& tensor) {
  auto* const managed = exported<DLManagedTensorVersioned>(tensor);
  managed->version = kVersion;
  if (is_save_only(tensor)) managed->flags |= kReadOnly;
  return managed;
}

DLManagedTensor* to_dlpack_unversioned(const Tensor& tensor) {
  if (is_save_only(tensor))
    invalid("it is read-only, which the unversioned form cannot say; export it with to_dlpack()");
  return exported<DLManagedTensor>(tensor);
}

}  // namespace dckpt
