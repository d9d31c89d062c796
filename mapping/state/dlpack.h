#pragma once

#include <cstdint>

#include "mapping/base/api.h"
#include "mapping/state/tensor.h"

// Of DLPack's C header, which is not needed here: include the one of the library that the tensors
// come from (dlpack/dlpack.h, ATen/dlpack.h), before or after this header.
struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace DCKPT_API dckpt {

/// Tensors of any library that speaks DLPack, without a copy. The elements are shared: a tensor
/// that is loaded into is filled in the other library too.

/// What will be done with an imported tensor.
enum class DlpackUse : std::uint8_t {
  kLoad,  ///< its elements may be written: one that is flagged as read-only is refused
  kSave,  ///< its elements are only read: a load into it is refused
};

/// Takes over `managed`: its deleter runs when the last copy of the handle is gone, in the thread
/// where that happens. Without strides it is row-major. Page-locked host memory is CPU memory here,
/// managed CUDA memory is memory of that GPU. Nothing waits for the producer's stream.
///
/// Throws CheckpointError, and then the caller still owns `managed`: (unsupported) for devices
/// other than CPU and CUDA, element types that no checkpoint holds, vectors as elements and another
/// major version than 1; (invalid argument) for a null pointer, a description that contradicts
/// itself or exceeds the address space, negative strides, and one that is read-only unless `use` is
/// kSave.
Tensor from_dlpack(DLManagedTensorVersioned* managed, DlpackUse use = DlpackUse::kLoad);
/// The same for the form that DLPack had before 1.0, which cannot say that it is read-only.
Tensor from_dlpack(DLManagedTensor* managed);

/// Whether it shares the elements of a tensor that was imported for saving only.
bool is_save_only(const Tensor& tensor) noexcept;

/// A description for another library, which calls its deleter; until then the elements stay alive.
/// Throws CheckpointError: (invalid argument) for a tensor without elements in memory,
/// (unsupported) for quantised types, whose scales are stored elsewhere. One that is_save_only() is
/// flagged as read-only.
DLManagedTensorVersioned* to_dlpack(const Tensor& tensor);
/// The same in the form that DLPack had before 1.0, which has no flags: (invalid argument) for a
/// tensor that is_save_only().
DLManagedTensor* to_dlpack_unversioned(const Tensor& tensor);

}  // namespace dckpt
