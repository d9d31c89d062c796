#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/geometry/dtype.h"
#include "mapping/geometry/dtype_of.h"
#include "mapping/geometry/shape.h"

namespace DCKPT_API dckpt {

struct Device {
  enum class Kind : std::uint8_t {
    kCpu,
    kCuda,
    kCallbacks,  ///< no memory: functions give and take the elements (callback_tensor.h)
  };
  Kind kind = Kind::kCpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// The place of the elements of a tensor that have not been read: element 0 is at `offset` in
/// `file`.
struct FileRange {
  std::string file;
  std::uint64_t offset = 0;
};

/// A handle to a strided tensor: cheap to copy, copies share the elements, and the owner keeps them
/// alive. It does not matter who allocated them (libtorch, a vector, a mapped file). Invariant:
/// strides().size() == shape().size(); numel() · item_size fits in int64; either data() points at
/// element 0, or it is null and the tensor is a meta tensor without elements; file_range() may then
/// give their place.
class Tensor {
 public:
  Tensor() = default;  ///< a float32 tensor of shape (0,) without memory

  /// Wraps memory that `owner` keeps alive, or the caller if it is null. Strides count elements.
  Tensor(DType dtype, Shape shape, Shape strides, void* data, std::shared_ptr<const void> owner,
         Device device = {});

  /// Wraps row-major elements in CPU memory, which `owner` keeps alive, or the caller if it is
  /// null.
  static Tensor wrap(DType dtype, Shape shape, void* data,
                     std::shared_ptr<const void> owner = nullptr);
  /// Allocates uninitialized CPU memory. Throws CheckpointError on a shape that is negative or too
  /// large.
  static Tensor empty(DType dtype, Shape shape);
  static Tensor zeros(DType dtype, Shape shape);
  /// Copies raw row-major elements; `bytes` must have the exact size.
  static Tensor from_bytes(DType dtype, Shape shape, ByteView bytes);
  /// A dtype and a shape without elements.
  static Tensor meta(DType dtype, Shape shape);
  static Tensor in_file(DType dtype, Shape shape, Shape strides, FileRange range);

  DType dtype() const noexcept { return dtype_; }
  const Shape& shape() const noexcept { return shape_; }
  const Shape& strides() const noexcept { return strides_; }
  std::size_t dim() const noexcept { return shape_.size(); }
  Device device() const noexcept { return device_; }
  std::int64_t numel() const noexcept { return dckpt::numel(shape_); }
  std::uint64_t nbytes() const noexcept {
    return static_cast<std::uint64_t>(numel()) * item_size(dtype_);
  }
  bool is_contiguous() const noexcept { return is_row_major(shape_, strides_); }
  bool has_data() const noexcept { return data_ != nullptr || numel() == 0; }

  /// Element 0. A const handle only gives read access.
  std::byte* data() noexcept { return data_; }
  const std::byte* data() const noexcept { return data_; }
  /// Element 0 for code that fills tensors that it gets as const handles, such as the destinations
  /// of a load: the constness of a handle is not that of the elements, which copies of it share.
  std::byte* mutable_data() const noexcept { return data_; }
  /// Element 0 as a T, read-only if T or the handle is const: `data<float>()`, `data<const
  /// float>()`. float16 and bfloat16 are accessed by their bits as std::uint16_t, complex32 as
  /// std::uint32_t, eight-bit floats as std::uint8_t, quantized types as their integers. Throws
  /// CheckpointError (mismatch) if the elements are of another type, (invalid argument) if the
  /// tensor is only described.
  template <typename T>
  requires ElementType<std::remove_const_t<T>> T* data() {
    require_elements(dtype_of<std::remove_const_t<T>>());
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  requires ElementType<std::remove_const_t<T>>
  const T* data() const {
    require_elements(dtype_of<std::remove_const_t<T>>());
    return reinterpret_cast<const T*>(data_);
  }
  const FileRange* file_range() const noexcept { return file_range_.get(); }
  const std::shared_ptr<const void>& owner() const noexcept { return owner_; }

  /// The elements as bytes; requires a contiguous CPU tensor with data.
  MutableByteView bytes();
  ByteView bytes() const;
  MutableByteView mutable_bytes() const;  ///< see mutable_data()

  /// Returns `length` entries from `start` along `axis`; shares the elements.
  Tensor narrow(std::size_t axis, std::int64_t start, std::int64_t length) const;
  /// Returns the same elements under another shape with the same numel; requires a contiguous
  /// tensor.
  Tensor view(Shape shape) const;
  /// Returns this tensor if it is contiguous, else a contiguous copy. CPU only.
  Tensor contiguous() const;

  /// Torch's flag; kept so that a pickled tensor is written back unchanged.
  bool requires_grad = false;

 private:
  void require_elements(DType accessed) const;

  DType dtype_ = DType::kFloat32;
  Device device_;
  Shape shape_ = Shape(1, 0);
  Shape strides_ = Shape(1, 1);
  std::byte* data_ = nullptr;
  std::shared_ptr<const void> owner_;
  std::shared_ptr<const FileRange> file_range_;
};

/// Returns text such as "float32 (2, 3)".
std::string to_string(const Tensor& tensor);

/// Compares dtype, shape and bytes (NaNs by their bits). Throws CheckpointError (invalid argument)
/// unless both are CPU tensors with data.
bool equal(const Tensor& a, const Tensor& b);

}  // namespace dckpt
