#include "mapping/state/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/geometry/strided_copy.h"

namespace dckpt {
namespace {

constexpr std::size_t kAlignment = 64;  // a cache line, as vectorized kernels expect
constexpr std::size_t kSmall = 4096;

std::uint64_t checked_nbytes(DType dtype, ShapeView shape) {
  const auto elements = shape.size() <= kMaxDims ? checked_numel(shape) : std::nullopt;
  const auto bytes =
      elements ? checked_mul(*elements, static_cast<std::int64_t>(item_size(dtype))) : std::nullopt;
  if (!bytes) {
    throw_error(ErrorCode::kInvalidArgument,
                "a tensor of shape {} is negative, has too many axes or is "
                "larger than the address space",
                to_string(shape));
  }
  return static_cast<std::uint64_t>(*bytes);
}

/// Allocates memory in one piece with its counter: aligned_alloc takes longer than malloc, and with
/// very many small tensors the time to allocate them counts.
std::shared_ptr<std::byte> allocate_small(std::size_t bytes, bool zeroed) {
  std::size_t room = bytes + kAlignment - 1;
  auto block = zeroed ? std::make_shared<std::byte[]>(room)
                      : std::make_shared_for_overwrite<std::byte[]>(room);
  void* memory = block.get();
  auto* const aligned = static_cast<std::byte*>(std::align(kAlignment, bytes, memory, room));
  return {std::move(block), aligned};
}

std::shared_ptr<std::byte> allocate(std::uint64_t bytes, bool zeroed) {
  const std::uint64_t rounded =
      (std::max<std::uint64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded <= kSmall) return allocate_small(rounded, zeroed);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (memory == nullptr) {
    throw_error(ErrorCode::kIo, "out of memory: a tensor of {} bytes ({}) could not be allocated",
                grouped(bytes), human_bytes(bytes));
  }
  if (zeroed) std::memset(memory, 0, rounded);
  return {memory, [](std::byte* p) { std::free(p); }};
}

Tensor allocated(DType dtype, Shape shape, bool zeroed) {
  auto memory = allocate(checked_nbytes(dtype, shape), zeroed);
  std::byte* const data = memory.get();
  return Tensor::wrap(dtype, std::move(shape), data, std::move(memory));
}

/// Returns the type by which C++ accesses elements of `dtype`: itself, or the integer that holds
/// its bits.
DType access_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16: return DType::kUInt16;
    case DType::kComplex32: return DType::kUInt32;
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E8M0FNU:
    case DType::kFloat4E2M1FNx2:
    case DType::kQUInt8: return DType::kUInt8;
    case DType::kQInt8: return DType::kInt8;
    case DType::kQInt32: return DType::kInt32;
    default: return dtype;
  }
}

}  // namespace

Tensor::Tensor(DType dtype, Shape shape, Shape strides, void* data,
               std::shared_ptr<const void> owner, Device device)
    : dtype_(dtype),
      device_(device),
      shape_(std::move(shape)),
      strides_(std::move(strides)),
      data_(static_cast<std::byte*>(data)),
      owner_(std::move(owner)) {
  checked_nbytes(dtype_, shape_);
  if (strides_.size() != shape_.size()) {
    throw_error(ErrorCode::kInvalidArgument, "a tensor of shape {} cannot have the strides {}",
                dckpt::to_string(shape_), dckpt::to_string(strides_));
  }
}

Tensor Tensor::wrap(DType dtype, Shape shape, void* data, std::shared_ptr<const void> owner) {
  Shape strides = row_major_strides(shape);
  return Tensor(dtype, std::move(shape), std::move(strides), data, std::move(owner));
}

Tensor Tensor::empty(DType dtype, Shape shape) {
  return allocated(dtype, std::move(shape), false);
}

Tensor Tensor::zeros(DType dtype, Shape shape) {
  return allocated(dtype, std::move(shape), true);
}

Tensor Tensor::from_bytes(DType dtype, Shape shape, ByteView bytes) {
  Tensor tensor = empty(dtype, std::move(shape));
  if (bytes.size() != tensor.nbytes()) {
    throw_error(ErrorCode::kInvalidArgument, "{} needs {} bytes, got {}", dckpt::to_string(tensor),
                tensor.nbytes(), bytes.size());
  }
  if (!bytes.empty()) std::memcpy(tensor.data(), bytes.data(), bytes.size());
  return tensor;
}

Tensor Tensor::meta(DType dtype, Shape shape) {
  return wrap(dtype, std::move(shape), nullptr);
}

Tensor Tensor::in_file(DType dtype, Shape shape, Shape strides, FileRange range) {
  Tensor tensor(dtype, std::move(shape), std::move(strides), nullptr, nullptr);
  tensor.file_range_ = std::make_shared<const FileRange>(std::move(range));
  return tensor;
}

void Tensor::require_elements(DType accessed) const {
  const DType expected = access_type(dtype_);
  if (accessed != expected) {
    std::string message = "the elements of a tensor, " + dckpt::to_string(*this) +
                          ", are accessed as " + std::string(dckpt::to_string(accessed));
    if (expected != dtype_)
      message += "; their bits can be accessed as " + std::string(dckpt::to_string(expected));
    throw_error(ErrorCode::kMismatch, message);
  }
  if (!has_data()) {
    throw_error(ErrorCode::kInvalidArgument,
                "the elements of " + dckpt::to_string(*this) +
                    " are accessed, but it is only described and has none");
  }
  if (device_.kind == Device::Kind::kCallbacks) {
    throw_error(ErrorCode::kInvalidArgument,
                "the elements of " + dckpt::to_string(*this) +
                    " are accessed in memory, but they are reached through callbacks alone");
  }
}

MutableByteView Tensor::bytes() {
  return mutable_bytes();
}

ByteView Tensor::bytes() const {
  return mutable_bytes();
}

MutableByteView Tensor::mutable_bytes() const {
  if (device_.kind != Device::Kind::kCpu || !is_contiguous() || !has_data()) {
    throw_error(ErrorCode::kInvalidArgument,
                "cannot access the bytes of {}: not a contiguous CPU tensor with data",
                dckpt::to_string(*this));
  }
  return {data_, nbytes()};
}

Tensor Tensor::narrow(std::size_t axis, std::int64_t start, std::int64_t length) const {
  if (axis >= dim() || start < 0 || length < 0 || start > shape_[axis] ||
      length > shape_[axis] - start) {
    throw_error(ErrorCode::kInvalidArgument, "cannot take [{}, {} + {}) along axis {} of {}", start,
                start, length, axis, dckpt::to_string(*this));
  }
  Tensor part = *this;
  part.shape_[axis] = length;
  if (data_ != nullptr)
    part.data_ += start * strides_[axis] * static_cast<std::int64_t>(item_size(dtype_));
  if (file_range_) {
    FileRange moved = *file_range_;
    moved.offset += static_cast<std::uint64_t>(start * strides_[axis]) * item_size(dtype_);
    part.file_range_ = std::make_shared<const FileRange>(std::move(moved));
  }
  return part;
}

Tensor Tensor::view(Shape shape) const {
  const auto elements = checked_numel(shape);
  if (!elements || *elements != numel() || !is_contiguous()) {
    throw_error(ErrorCode::kInvalidArgument, "cannot view {} as {}", dckpt::to_string(*this),
                dckpt::to_string(shape));
  }
  Tensor viewed = *this;
  viewed.strides_ = row_major_strides(shape);
  viewed.shape_ = std::move(shape);
  return viewed;
}

Tensor Tensor::contiguous() const {
  if (is_contiguous()) return *this;
  if (device_.kind != Device::Kind::kCpu || !has_data()) {
    throw_error(ErrorCode::kInvalidArgument, "cannot copy {}: not a CPU tensor with data",
                dckpt::to_string(*this));
  }
  Tensor copy = empty(dtype_, shape_);
  copy.requires_grad = requires_grad;
  strided_copy(shape_, item_size(dtype_), data_, {0, strides_}, copy.data_, {0, copy.strides_});
  return copy;
}

std::string to_string(const Tensor& tensor) {
  return str_format("{} {}", to_string(tensor.dtype()), to_string(tensor.shape()));
}

bool equal(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const Tensor left = a.contiguous();
  const Tensor right = b.contiguous();
  const ByteView bytes = left.bytes();
  const ByteView others = right.bytes();
  return bytes.empty() || std::memcmp(bytes.data(), others.data(), bytes.size()) == 0;
}

}  // namespace dckpt
