#pragma once

#include <cstdint>

#include "mapping/base/api.h"
#include "mapping/state/tensor.h"

// Types of DLPack's C header, which is not needed here: include the one of the library that the
// tensors come from (dlpack/dlpack.h, ATen/dlpack.h), before or after this header.
struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace DCKPT_API dckpt {

/// Shares tensors with any library that supports DLPack, without a copy: loading into a tensor also
/// fills it in the other library.

/// The use of an imported tensor.
enum class DlpackUse : std::uint8_t {
  kLoad,  ///< its elements may be written: a tensor that is flagged as read-only is refused
  kSave,  ///< its elements are only read: a load into it is refused
};

/// Takes over `managed`: its deleter runs when the last copy of the handle is gone, in the thread
/// where that happens. Without strides the tensor is row-major. Page-locked host memory is CPU
/// memory here, managed CUDA memory is memory of that GPU. Nothing waits for the producer's stream.
///
/// Throws CheckpointError, and then the caller still owns `managed`: (unsupported) for devices
/// other than CPU and CUDA, element types that no checkpoint holds, vectors as elements and another
/// major version than 1; (invalid argument) for a null pointer, a description that contradicts
/// itself or exceeds the address space, negative strides, and a read-only tensor unless `use` is
/// kSave.
Tensor from_dlpack(DLManagedTensorVersioned* managed, DlpackUse use = DlpackUse::kLoad);
/// Does the same for the form that DLPack had before 1.0, which cannot say that it is read-only.
Tensor from_dlpack(DLManagedTensor* managed);

/// Returns whether a tensor shares the elements of one that was imported for saving only.
bool is_save_only(const Tensor& tensor) noexcept;

/// Describes a tensor for another library, which calls the deleter; until then the elements stay
/// alive. Throws CheckpointError: (invalid argument) for a tensor without elements in memory,
/// (unsupported) for quantized types, whose scales are stored elsewhere. A tensor that
/// is_save_only() is flagged as read-only.
DLManagedTensorVersioned* to_dlpack(const Tensor& tensor);
/// Does the same in the form that DLPack had before 1.0, which has no flags: throws (invalid
/// argument) for a tensor that is_save_only().
DLManagedTensor* to_dlpack_unversioned(const Tensor& tensor);

}  // namespace dckpt
